//! The loader on objects from a C compiler.
#![allow(unsafe_code, missing_docs, clippy::undocumented_unsafe_blocks, clippy::cast_ptr_alignment)]

mod common;

use common::object;
use lj_runtime::Error;
use lj_runtime::link::{link, link_with};

const SOURCE: &str = r#"
#include <math.h>
#include <string.h>
static const double table[4] = {1.5, 2.5, 3.5, 4.5};
static int counter = 7;
static char zeros[100000];
int visible = 3;
static double twice(double x) { return x * 2; }
static double thrice(double x) { return x * 3; }
double (*const volatile functions[])(double) = {twice, thrice};
double look(int i) { return table[i & 3]; }
int count(void) { zeros[counter] = 1; return ++counter + zeros[7] + zeros[99999] + visible; }
double far_away(double x) { return expm1(x) + functions[1](x); }
void fill(void *p, unsigned long n) { memset(p, 42, n); }
const char *word(void) { return "constant"; }
"#;

fn function<F: Copy>(l: &lj_runtime::link::Linked, name: &str) -> F {
    let p = l.function(name).unwrap();
    assert_eq!(size_of::<F>(), size_of_val(&p));
    unsafe { std::mem::transmute_copy(&p) }
}

#[test]
fn code_models_and_relocations() {
    for flags in
        [&["-fPIC"][..], &["-fPIE"], &["-fno-pic"], &["-fPIC", "-fno-plt"], &["-fPIC", "-mcmodel=large"]]
    {
        let bytes = object(SOURCE, flags);
        let l = match link(&bytes) {
            Ok(l) => l,
            // The large model uses relocations that our code generator never does.
            Err(Error::Link(m)) if flags.contains(&"-mcmodel=large") && m.contains("unsupported") => continue,
            Err(e) => panic!("{flags:?}: {e}"),
        };
        let look: extern "C" fn(i32) -> f64 = function(&l, "look");
        assert_eq!([look(0), look(3)], [1.5, 4.5]);
        let count: extern "C" fn() -> i32 = function(&l, "count");
        assert_eq!([count(), count()], [12, 13]);
        let far: extern "C" fn(f64) -> f64 = function(&l, "far_away");
        assert_eq!(far(0.5), 0.5f64.exp_m1() + 1.5);
        let fill: extern "C" fn(*mut u8, u64) = function(&l, "fill");
        let mut buffer = [0u8; 5];
        fill(buffer.as_mut_ptr(), 4);
        assert_eq!(buffer, [42, 42, 42, 42, 0]);
        let word: extern "C" fn() -> *const std::ffi::c_char = function(&l, "word");
        assert_eq!(unsafe { std::ffi::CStr::from_ptr(word()) }, c"constant");
        assert!(l.function("missing").is_none());
    }
}

#[test]
fn memory_is_never_writable_and_executable() {
    let l = link(&object(SOURCE, &["-fPIC"])).unwrap();
    let start = *l.functions().values().min().unwrap();
    let mut seen = 0;
    for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let (range, rest) = line.split_once(' ').unwrap();
        let (from, to) = range.split_once('-').unwrap();
        let at = |s| usize::from_str_radix(s, 16).unwrap();
        if at(from) <= start && start < at(to) {
            assert!(rest.starts_with("r-x"), "{line}");
            seen += 1;
        }
        assert!(!rest.starts_with("rwx"), "{line}");
    }
    assert_eq!(seen, 1);
}

extern "C" fn seven(x: i32) -> i32 {
    x * 7
}

#[test]
fn unknown_symbols_are_errors() {
    let bytes =
        object("int nobody_has_this(int); int f(int x) { return nobody_has_this(x) + 1; }", &["-fPIC"]);
    match link(&bytes) {
        Err(Error::Link(m)) => assert!(m.contains("nobody_has_this"), "{m}"),
        other => panic!("{:?}", other.map(|l| l.size())),
    }
    let l = link_with(&bytes, &|name| (name == "nobody_has_this").then_some(seven as *const () as usize))
        .unwrap();
    let f: extern "C" fn(i32) -> i32 = function(&l, "f");
    assert_eq!(f(3), 22);
}

#[test]
fn damaged_objects_never_crash_the_loader() {
    let good = object(SOURCE, &["-fPIC"]);
    assert!(link(&[]).is_err());
    assert!(link(b"\x7fELF").is_err());
    // Section headers stand at the end, so every cut loses some (the last 8 bytes are not read).
    for n in (0..good.len() - 8).step_by(7) {
        assert!(link(&good[..n]).is_err(), "first {n} bytes");
    }
    let (mut linked, mut refused) = (0, 0);
    for i in 0..good.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut bad = good.clone();
            bad[i] ^= flip;
            match link(&bad) {
                Ok(_) => linked += 1,
                Err(Error::Link(_) | Error::Memory(_)) => refused += 1,
                Err(e) => panic!("{e}"),
            }
        }
    }
    assert!(linked > 0 && refused > 0, "{linked} linked, {refused} refused");
}
