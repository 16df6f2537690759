//! Runs a stage so that a fault in it — an error or a panic — is a value.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The result of `f`, with errors and panics as text.
pub fn guard<T, E: std::fmt::Display>(f: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    quiet_panics();
    let outer = INSIDE.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(f));
    INSIDE.set(outer);
    match result {
        Ok(Ok(v)) => Ok(v),
        Ok(Err(e)) => Err(e.to_string()),
        Err(payload) => {
            let place = PLACE.take().map_or(String::new(), |p| format!(" at {p}"));
            Err(format!("internal error{place}: {}", text(payload.as_ref())))
        }
    }
}

/// Panics inside a guarded stage are reported by us, not printed; others go to the hook that was
/// there before.
fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if INSIDE.get() {
                let place = info.location().map(|l| format!("{}:{}", l.file(), l.line()));
                PLACE.set(place);
            } else {
                before(info);
            }
        }));
    });
}

fn text(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}

#[cfg(test)]
mod tests {
    use super::guard;

    #[test]
    fn errors_and_panics_become_text() {
        assert_eq!(guard(|| Ok::<_, String>(3)), Ok(3));
        assert_eq!(guard(|| Err::<(), _>("no")), Err("no".to_string()));
        let index = 4;
        let panicked = guard(|| Ok::<_, String>([1, 2, 3][std::hint::black_box(index)]));
        let message = panicked.unwrap_err();
        assert!(message.contains("guard.rs") && message.contains("out of bounds"), "{message}");
    }
}
