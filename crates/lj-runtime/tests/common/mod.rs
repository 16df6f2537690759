//! Helpers: objects from C sources (Rust's linker driver is a C compiler) and small programs.
#![allow(
    dead_code,
    unsafe_code,
    missing_docs,
    clippy::undocumented_unsafe_blocks,
    clippy::cast_ptr_alignment
)]

use lj_ir::{DType, Device, Expr, Sym, TensorType, Type};
use lj_runtime::{InputValue, KernelObject, OutputValue, TensorHandle};
use lj_schedule::loopnest::{LoopNest, Param, Scratch};
use lj_schedule::program::{BufId, Buffer, BufferKind, Program, TensorRef};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// Compiles C to an object.
pub fn object(source: &str, flags: &[&str]) -> Vec<u8> {
    static N: AtomicU32 = AtomicU32::new(0);
    let base = format!("lj-test-{}-{}", std::process::id(), N.fetch_add(1, Ordering::Relaxed));
    let (c, o) =
        (std::env::temp_dir().join(format!("{base}.c")), std::env::temp_dir().join(format!("{base}.o")));
    std::fs::write(&c, source).unwrap();
    let ok = std::process::Command::new("cc")
        .args(["-c", "-O2", "-fno-stack-protector", "-w"])
        .args(flags)
        .arg(&c)
        .arg("-o")
        .arg(&o)
        .status()
        .unwrap()
        .success();
    assert!(ok, "cc failed on {source}");
    let bytes = std::fs::read(&o).unwrap();
    let _ = (std::fs::remove_file(c), std::fs::remove_file(o));
    bytes
}

/// Loads the torch that `LJ_TORCH_LIB` names; `false` (skip) without it.
pub fn torch() -> bool {
    let Some(path) = std::env::var_os("LJ_TORCH_LIB") else {
        assert!(std::env::var_os("LJ_REQUIRE_TORCH").is_none(), "LJ_TORCH_LIB is not set");
        return false;
    };
    lj_runtime::torch::load_torch(Path::new(&path)).unwrap();
    true
}

/// The head every C kernel starts with.
pub const HEAD: &str = "
#include <stdint.h>
#include <string.h>
#define KERNEL(name) void name(char **b, const int64_t *s, char *scratch, int64_t begin, int64_t end, int64_t *err)
#define F(i) ((float *)b[i])
";

pub fn kernels(source: &str, names: &[&str]) -> Vec<KernelObject> {
    vec![KernelObject {
        tile: None,
        bytes: object(&format!("{HEAD}{source}"), &["-fPIC"]),
        kernels: names.iter().enumerate().map(|(i, n)| (i as u32, (*n).to_owned())).collect(),
    }]
}

pub fn e(v: i64) -> Expr {
    Expr::int(v)
}

pub fn s(name: &str) -> Expr {
    Expr::sym(name)
}

pub fn f32_type(shape: &[Expr]) -> TensorType {
    TensorType::contiguous(DType::F32, shape.to_vec())
}

pub fn buffer(kind: BufferKind, ty: TensorType, first: u32, last: u32) -> Buffer {
    Buffer { dtype: ty.dtype, device: Device::Cpu, elems: ty.numel(), ty, kind, first, last }
}

/// A nest without a body (the code comes from C).
pub fn nest(name: &str, params: &[bool], syms: &[&str], extent: Expr, scratch: &[Expr]) -> LoopNest {
    LoopNest {
        name: name.into(),
        params: params.iter().map(|w| Param { dtype: DType::F32, written: *w, read: !w }).collect(),
        syms: syms.iter().map(|s| Sym::new(s)).collect(),
        scratch: scratch.iter().map(|len| Scratch { dtype: DType::F32, len: len.clone() }).collect(),
        parallel: Sym::new("p"),
        extent,
        body: vec![],
    }
}

pub fn whole(p: &Program, buf: u32) -> TensorRef {
    let ty = &p.buffers[buf as usize].ty;
    TensorRef { buf: BufId(buf), offset: Expr::ZERO, shape: ty.shape.clone(), strides: ty.strides.clone() }
}

pub fn inputs(types: &[TensorType]) -> Vec<Type> {
    types.iter().cloned().map(Type::Tensor).collect()
}

pub fn tensor(sizes: &[i64], data: &[f32]) -> TensorHandle {
    let mut strides = vec![1; sizes.len()];
    for i in (1..sizes.len()).rev() {
        strides[i - 1] = strides[i] * sizes[i].max(1);
    }
    let t = TensorHandle::empty_strided(sizes, &strides, DType::F32, Device::Cpu).unwrap();
    let p = t.data_ptr().unwrap().cast::<f32>();
    for (i, v) in data.iter().enumerate() {
        unsafe { p.add(i).write(*v) };
    }
    t
}

/// Elements in row-major order.
pub fn data(t: &TensorHandle) -> Vec<f32> {
    let (sizes, strides) = (t.sizes().unwrap(), t.strides().unwrap());
    let p = t.data_ptr().unwrap().cast::<f32>();
    let n: i64 = sizes.iter().product();
    (0..n)
        .map(|mut i| {
            let mut at = 0;
            for (size, stride) in sizes.iter().zip(strides).rev() {
                at += i % size * stride;
                i /= size;
            }
            unsafe { p.offset(at as isize).read() }
        })
        .collect()
}

pub fn arg(t: TensorHandle) -> InputValue {
    InputValue::Tensor(t)
}

pub fn out(values: &[OutputValue], n: usize) -> Vec<f32> {
    match &values[n] {
        OutputValue::Tensor(t) => data(t),
        other => panic!("{other:?}"),
    }
}

/// `0, 1, …`.
pub fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}
