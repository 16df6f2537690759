//! Steps that multiply matrices.

use super::Call;
use crate::error::{Error, Result};
use crate::fence::Fenced;
use crate::gemm::{Matrix, Product, Room, run};
use crate::memory::Block;
use crate::plan::{Own, Window};

impl Call<'_> {
    /// By ATen.
    pub(super) fn matmul(
        &mut self,
        out: &Window,
        a: &Window,
        b: &Window,
        bias: Option<&Window>,
        batched: bool,
    ) -> Result<()> {
        let t = self.torch;
        let (out, a, b) = (self.tensor(out)?, self.tensor(a)?, self.tensor(b)?);
        let bias = bias.map(|w| self.tensor(w)).transpose()?;
        let (o, a, b) = (out.as_raw(), a.as_raw(), b.as_raw());
        // SAFETY: all handles are valid for the duration of the call.
        let (code, op) = unsafe {
            match (&bias, batched) {
                (None, false) => ((t.mm_out)(o, a, b), "aten.mm.out"),
                (None, true) => ((t.bmm_out)(o, a, b), "aten.bmm.out"),
                (Some(c), false) => ((t.addmm_out)(o, c.as_raw(), a, b, 1.0, 1.0), "aten.addmm.out"),
                (Some(c), true) => ((t.baddbmm_out)(o, c.as_raw(), a, b, 1.0, 1.0), "aten.baddbmm.out"),
            }
        };
        t.check(code, op)
    }

    /// By our own kernels.
    pub(super) fn own_matmul(
        &mut self,
        own: &Own,
        (out, a, b): (&Window, &Window, &Window),
        bias: Option<&Window>,
    ) -> Result<()> {
        let values: &[i64] = &self.values;
        let (shape, inner) = (out.shape.of(values), a.shape.of(values));
        let ([.., m, n], [.., k]) = (shape, inner) else {
            return Err(Error::Program("a matrix product of vectors".into()));
        };
        let batch = if shape.len() == 3 { shape[0] } else { 1 };
        let mut fenced = vec![];
        for w in [out, a, b].into_iter().chain(bias) {
            fenced.push(self.fenced_window(w)?);
        }
        let at = |w: &Window, n: usize| fenced[n].as_ref().map_or(self.live[w.buf].ptr, Fenced::ptr);
        let matrix = |w: &Window, n: usize| {
            let bytes = own.kernels.tile.dtype.bytes();
            let ptr = at(w, n).wrapping_offset((w.offset.of(values) * bytes) as isize);
            // A dim of one element repeats it, whatever the result has there.
            let (extents, strides) = (w.shape.of(values), w.strides.of(values));
            let stride = |back: usize| match extents.len().checked_sub(back) {
                Some(d) if extents[d] != 1 => strides[d],
                _ => 0,
            };
            Matrix { ptr, row: stride(2), col: stride(1), batch: stride(3) }
        };
        let product = Product {
            batch,
            m: *m,
            n: *n,
            k: *k,
            a: matrix(a, 1),
            b: matrix(b, 2),
            bias: bias.map(|w| matrix(w, 3)),
            out: matrix(out, 0),
        };
        let each = own.scratch(out, a, values).max(self.instance.scratch);
        let wanted = each * self.threads as u64;
        let extra = if wanted > self.workspace.scratch.len() { Some(Block::new(wanted)?) } else { None };
        let scratch = extra.as_ref().unwrap_or(&self.workspace.scratch).ptr();
        let (shared, shared_bytes) = match own.workspace {
            Some(b) => (self.live[b].ptr, self.plan.buffers[b].bytes(values)?),
            None => (std::ptr::null_mut(), 0),
        };
        let room = Room { shared, shared_bytes, scratch, each: each as usize, threads: self.threads };
        // SAFETY: the windows lie in live buffers, each of its own memory, as the schedule lays them out;
        // scratch and workspace are as large as said.
        unsafe { run(&own.kernels, &product, &room)? };
        if let Some(f) = &fenced[0] {
            // SAFETY: the copy has the size of the buffer.
            unsafe { f.copy_back(self.live[out.buf].ptr) };
        }
        Ok(())
    }

    /// A copy of a window's buffer between guard pages, if the plan is fenced.
    fn fenced_window(&self, w: &Window) -> Result<Option<Fenced>> {
        let (Some(fence), ptr) = (self.plan.fence, self.live[w.buf].ptr) else { return Ok(None) };
        let len = self.plan.buffers[w.buf].bytes(&self.values)? as usize;
        if ptr.is_null() || len == 0 {
            return Ok(None);
        }
        // SAFETY: a live buffer has the size that the plan computed for it.
        Ok(Some(unsafe { Fenced::copy_of(ptr, len, fence)? }))
    }
}
