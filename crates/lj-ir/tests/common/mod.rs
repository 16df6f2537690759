//! What the property tests share.

use proptest::prelude::ProptestConfig;

/// So many cases, or what `PROPTEST_CASES` says (`make test-properties`); a failure is kept as a test
/// of its own, not in a file beside the source.
pub fn config(cases: u32) -> ProptestConfig {
    let default = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_some() { default } else { ProptestConfig { cases, ..default } }
}
