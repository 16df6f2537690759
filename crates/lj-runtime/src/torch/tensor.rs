//! Owned and borrowed tensor handles.

use super::{RawTensor, Torch, torch};
use crate::error::{Error, Result};
use lj_ir::{DType, Device};
use std::ffi::c_void;

/// A tensor. Owned handles hold a reference and give it back when dropped; borrowed ones do not and
/// must not outlive whoever holds it.
pub struct TensorHandle {
    raw: RawTensor,
    owned: bool,
    torch: &'static Torch,
}

// SAFETY: at::Tensor is a reference-counted pointer with atomic counts.
unsafe impl Send for TensorHandle {}
// SAFETY: the methods that take `&self` only read metadata or call thread-safe ATen functions.
unsafe impl Sync for TensorHandle {}

impl std::fmt::Debug for TensorHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}

impl Drop for TensorHandle {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: we own this handle and nobody uses it after us.
            unsafe { (self.torch.delete)(self.raw) };
        }
    }
}

impl TensorHandle {
    /// Takes over an owned `AtenTensorHandle`.
    ///
    /// # Safety
    /// `raw` is a valid handle that nobody else will delete.
    ///
    /// # Errors
    /// If torch's C interface is not available or `raw` is null.
    pub unsafe fn from_raw(raw: *mut c_void) -> Result<TensorHandle> {
        TensorHandle::wrap(raw, true)
    }

    /// Borrows an `AtenTensorHandle`.
    ///
    /// # Safety
    /// `raw` stays valid for as long as the result and everything made from it by [`Self::borrow`].
    ///
    /// # Errors
    /// If torch's C interface is not available or `raw` is null.
    pub unsafe fn borrowed(raw: *mut c_void) -> Result<TensorHandle> {
        TensorHandle::wrap(raw, false)
    }

    fn wrap(raw: RawTensor, owned: bool) -> Result<TensorHandle> {
        if raw.is_null() {
            return Err(Error::Abi("a tensor handle is null".into()));
        }
        Ok(TensorHandle { raw, owned, torch: torch()? })
    }

    /// Gives the owned `AtenTensorHandle` away; a borrowed one becomes a new reference first.
    ///
    /// # Errors
    /// If torch cannot make a new reference.
    pub fn into_raw(self) -> Result<*mut c_void> {
        let mut owned = if self.owned { self } else { self.new_ref()? };
        owned.owned = false;
        Ok(owned.raw)
    }

    /// The handle itself, still owned by `self`.
    pub fn as_raw(&self) -> *mut c_void {
        self.raw
    }

    /// Whether dropping it gives a reference back.
    pub fn is_owned(&self) -> bool {
        self.owned
    }

    /// The same tensor without a reference of its own.
    ///
    /// # Safety
    /// The result must not outlive `self`.
    #[must_use]
    pub unsafe fn borrow(&self) -> TensorHandle {
        TensorHandle { raw: self.raw, owned: false, torch: self.torch }
    }

    fn make(torch: &'static Torch, op: &str, f: impl FnOnce(*mut RawTensor) -> i32) -> Result<TensorHandle> {
        let mut raw = std::ptr::null_mut();
        let code = f(&raw mut raw);
        torch.check(code, op)?;
        if raw.is_null() {
            return Err(Error::Abi(format!("{op} gave no tensor")));
        }
        Ok(TensorHandle { raw, owned: true, torch })
    }

    /// A new reference to the same tensor.
    ///
    /// # Errors
    /// If torch refuses.
    pub fn new_ref(&self) -> Result<TensorHandle> {
        // SAFETY: the handle is valid.
        Self::make(self.torch, "new_tensor_handle", |r| unsafe { (self.torch.new_handle)(self.raw, r) })
    }

    fn get<T>(&self, what: &str, mut v: T, f: impl FnOnce(*mut T) -> i32) -> Result<T> {
        let code = f(&raw mut v);
        self.torch.check(code, what)?;
        Ok(v)
    }

    /// Address of element 0 (after the storage offset).
    ///
    /// # Errors
    /// If the tensor has no storage.
    pub fn data_ptr(&self) -> Result<*mut u8> {
        // SAFETY: the handle is valid.
        let p = self
            .get("data_ptr", std::ptr::null_mut(), |r| unsafe { (self.torch.get_data_ptr)(self.raw, r) })?;
        Ok(p.cast())
    }

    /// Number of dims.
    ///
    /// # Errors
    /// If the tensor is undefined.
    pub fn rank(&self) -> Result<usize> {
        // SAFETY: the handle is valid.
        let n = self.get("dim", 0i64, |r| unsafe { (self.torch.get_dim)(self.raw, r) })?;
        usize::try_from(n).map_err(|_| Error::Abi(format!("a tensor has {n} dims")))
    }

    fn list(&self, what: &str, f: unsafe extern "C" fn(RawTensor, *mut *const i64) -> i32) -> Result<&[i64]> {
        let n = self.rank()?;
        // SAFETY: the handle is valid.
        let p = self.get(what, std::ptr::null(), |r| unsafe { f(self.raw, r) })?;
        if n == 0 || p.is_null() {
            return Ok(&[]);
        }
        // SAFETY: torch returns a pointer to `dim` integers that live as long as the tensor and
        // are not resized while we hold it.
        Ok(unsafe { std::slice::from_raw_parts(p, n) })
    }

    /// Extents.
    ///
    /// # Errors
    /// If the tensor is undefined.
    pub fn sizes(&self) -> Result<&[i64]> {
        self.list("sizes", self.torch.get_sizes)
    }

    /// Strides in elements.
    ///
    /// # Errors
    /// If the tensor is undefined or not strided.
    pub fn strides(&self) -> Result<&[i64]> {
        self.list("strides", self.torch.get_strides)
    }

    /// `c10::ScalarType`.
    ///
    /// # Errors
    /// If the tensor is undefined.
    pub fn dtype_code(&self) -> Result<i32> {
        // SAFETY: the handle is valid.
        self.get("dtype", 0i32, |r| unsafe { (self.torch.get_dtype)(self.raw, r) })
    }

    /// Element type.
    ///
    /// # Errors
    /// If it is one we do not know.
    pub fn dtype(&self) -> Result<DType> {
        let code = self.dtype_code()?;
        DType::from_torch_code(code).ok_or_else(|| Error::Abi(format!("unknown dtype code {code}")))
    }

    /// `c10::DeviceType`.
    ///
    /// # Errors
    /// If the tensor is undefined.
    pub fn device_type(&self) -> Result<i32> {
        // SAFETY: the handle is valid.
        self.get("device", 0i32, |r| unsafe { (self.torch.get_device_type)(self.raw, r) })
    }

    /// Whether its data is in host memory.
    ///
    /// # Errors
    /// If the tensor is undefined.
    pub fn is_cpu(&self) -> Result<bool> {
        // SAFETY: a getter without arguments.
        Ok(self.device_type()? == unsafe { (self.torch.device_type_cpu)() })
    }

    /// Offset of element 0 in its storage, in elements.
    ///
    /// # Errors
    /// If the tensor has no storage.
    pub fn storage_offset(&self) -> Result<i64> {
        // SAFETY: the handle is valid.
        self.get("storage_offset", 0i64, |r| unsafe { (self.torch.get_storage_offset)(self.raw, r) })
    }

    /// Whether it is a tensor at all (`false` for the undefined tensor that stands for `None`).
    pub fn is_defined(&self) -> bool {
        let mut defined = true;
        match self.torch.is_defined {
            // SAFETY: the handle is valid.
            Some(f) => unsafe { f(self.raw, &raw mut defined) == 0 && defined },
            // Earlier there is no getter; the undefined tensor has the dtype `Undefined`, which is
            // not in our table of element types.
            None => self.dtype().is_ok(),
        }
    }

    /// A new uninitialised tensor.
    ///
    /// # Errors
    /// If torch cannot allocate it.
    pub fn empty_strided(
        sizes: &[i64],
        strides: &[i64],
        dtype: DType,
        device: Device,
    ) -> Result<TensorHandle> {
        let torch = torch()?;
        let (device, index) = torch.device(device);
        // SAFETY: the lists have as many entries as we say.
        Self::make(torch, "empty_strided", |r| unsafe {
            (torch.empty_strided)(
                sizes.len() as i64,
                sizes.as_ptr(),
                strides.as_ptr(),
                dtype.torch_code(),
                device,
                index,
                r,
            )
        })
    }

    /// A CPU tensor over memory it does not own.
    ///
    /// # Safety
    /// `data` stays valid while the result or anything that shares its storage is used.
    ///
    /// # Errors
    /// If torch refuses.
    pub unsafe fn from_blob(
        data: *mut u8,
        sizes: &[i64],
        strides: &[i64],
        dtype: DType,
    ) -> Result<TensorHandle> {
        let torch = torch()?;
        let (device, index) = torch.device(Device::Cpu);
        // SAFETY: the lists have as many entries as we say; the caller answers for `data`.
        Self::make(torch, "from_blob", |r| unsafe {
            (torch.from_blob)(
                data.cast(),
                sizes.len() as i64,
                sizes.as_ptr(),
                strides.as_ptr(),
                0,
                dtype.torch_code(),
                device,
                index,
                r,
            )
        })
    }

    /// Another window on the same storage; `offset` counts elements from this tensor's element 0.
    /// Torch does not check that the window lies in the storage.
    ///
    /// # Errors
    /// If torch refuses.
    pub fn reinterpret(&self, sizes: &[i64], strides: &[i64], offset: i64) -> Result<TensorHandle> {
        // Torch adds the offset to the tensor's own.
        // SAFETY: the handle is valid and the lists have as many entries as we say.
        Self::make(self.torch, "reinterpret_tensor", |r| unsafe {
            (self.torch.reinterpret)(
                self.raw,
                sizes.len() as i64,
                sizes.as_ptr(),
                strides.as_ptr(),
                offset,
                r,
            )
        })
    }

    /// A copy with the same strides and its own storage.
    ///
    /// # Errors
    /// If torch cannot allocate it.
    pub fn deep_clone(&self) -> Result<TensorHandle> {
        // SAFETY: the handle is valid.
        Self::make(self.torch, "clone", |r| unsafe { (self.torch.clone)(self.raw, r) })
    }

    /// `self.copy_(src)`.
    ///
    /// # Errors
    /// If the shapes do not broadcast.
    pub fn copy_from(&self, src: &TensorHandle) -> Result<()> {
        // SAFETY: both handles are valid.
        let code = unsafe { (self.torch.copy)(self.raw, src.raw, 0) };
        self.torch.check(code, "aten.copy_")
    }

    /// For messages: dtype, sizes and strides.
    pub fn describe(&self) -> String {
        let dtype = match self.dtype() {
            Ok(d) => d.name().to_owned(),
            Err(e) => return e.to_string(),
        };
        let device = match self.is_cpu() {
            Ok(true) => "cpu".to_owned(),
            _ => format!("device type {}", self.device_type().unwrap_or(-1)),
        };
        describe(&dtype, &device, self.sizes().unwrap_or(&[]), self.strides().unwrap_or(&[]))
    }
}

/// A tensor type in words.
pub(crate) fn describe(dtype: &str, device: &str, sizes: &[i64], strides: &[i64]) -> String {
    format!("{dtype} tensor on {device} with sizes {sizes:?} and strides {strides:?}")
}

impl Torch {
    /// `c10::DeviceType` and index.
    pub fn device(&self, device: Device) -> (i32, i32) {
        // SAFETY: getters without arguments.
        unsafe {
            match device {
                Device::Cpu => ((self.device_type_cpu)(), 0),
                Device::Cuda(i) => ((self.device_type_cuda)(), i as i32),
                Device::Meta => ((self.device_type_meta)(), 0),
            }
        }
    }
}

/// The tensor of a Python `torch.Tensor`, or `None` where torch has no C function for it (before
/// 2.14; the caller then goes through `torch._C._aoti`).
///
/// # Safety
/// `object` is a valid `PyObject*` and the GIL is held.
///
/// # Errors
/// If the object is not a tensor.
pub unsafe fn handle_from_pyobject(object: *mut c_void) -> Option<Result<TensorHandle>> {
    let torch = match torch() {
        Ok(t) => t,
        Err(e) => return Some(Err(e)),
    };
    let f = torch.from_pyobject?;
    // SAFETY: the caller's promise.
    Some(TensorHandle::make(torch, "tensor_from_pyobject", |r| unsafe { f(object, r) }))
}

/// A new reference to a Python `torch.Tensor` (`PyObject*`), or `None` where torch has no C function
/// for it (before 2.14).
///
/// # Safety
/// The GIL is held.
///
/// # Errors
/// If Python cannot allocate it.
pub unsafe fn handle_to_pyobject(handle: &TensorHandle) -> Option<Result<*mut c_void>> {
    let f = handle.torch.to_pyobject?;
    let mut out = std::ptr::null_mut();
    // SAFETY: the caller's promise; a null type means `torch.Tensor`.
    let code = unsafe { f(handle.raw, std::ptr::null_mut(), &raw mut out) };
    Some(handle.torch.check(code, "tensor_to_pyobject").map(|()| out))
}
