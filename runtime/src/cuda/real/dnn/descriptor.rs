//! Descriptors of cuDNN's graph interface: opaque values with typed attributes, which are set, and
//! then final.

use super::super::super::driver::DriverError;
use super::{checked, functions};
use cudarc::cudnn::sys;
use std::ffi::c_void;
use std::ptr::null_mut;
use sys::cudnnBackendAttributeType_t as Type;
pub(super) use sys::{
    cudnnBackendAttributeName_t as Attribute, cudnnBackendDescriptorType_t as Kind,
};

/// A value of an attribute, and the type that the library knows it by.
pub(super) trait Value: Copy {
    const TYPE: Type;
}

macro_rules! values {
    ($($rust:ty => $of:ident),* $(,)?) => {$(
        impl Value for $rust {
            const TYPE: Type = Type::$of;
        }
    )*};
}
values! {
    bool => CUDNN_TYPE_BOOLEAN,
    i64 => CUDNN_TYPE_INT64,
    f32 => CUDNN_TYPE_FLOAT,
    *mut c_void => CUDNN_TYPE_VOID_PTR,
    sys::cudnnHandle_t => CUDNN_TYPE_HANDLE,
    sys::cudnnDataType_t => CUDNN_TYPE_DATA_TYPE,
    sys::cudnnConvolutionMode_t => CUDNN_TYPE_CONVOLUTION_MODE,
    sys::cudnnBackendHeurMode_t => CUDNN_TYPE_HEUR_MODE,
    sys::cudnnPointwiseMode_t => CUDNN_TYPE_POINTWISE_MODE,
    sys::cudnnReduceTensorOp_t => CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
}

/// A descriptor, which is given back once nobody has it. Others keep those that are their attributes.
pub(super) struct Descriptor(u64);

impl Descriptor {
    pub(super) fn new(kind: Kind) -> Result<Descriptor, DriverError> {
        let mut made: sys::cudnnBackendDescriptor_t = null_mut();
        // SAFETY: the library writes one handle.
        checked("cudnnBackendCreateDescriptor", unsafe {
            functions::cudnnBackendCreateDescriptor(kind, &raw mut made)
        })?;
        Ok(Descriptor(made as u64))
    }

    fn raw(&self) -> sys::cudnnBackendDescriptor_t {
        self.0 as sys::cudnnBackendDescriptor_t
    }

    /// Sets an attribute that has values of this type.
    pub(super) fn set<T: Value>(&self, which: Attribute, to: &[T]) -> Result<(), DriverError> {
        self.put(which, T::TYPE, to.len(), to.as_ptr().cast())
    }

    /// Sets an attribute whose values are other descriptors, which are final.
    pub(super) fn set_to(&self, which: Attribute, to: &[&Descriptor]) -> Result<(), DriverError> {
        let raw: Vec<_> = to.iter().map(|d| d.raw()).collect();
        self.put(which, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, raw.len(), raw.as_ptr().cast())
    }

    fn put(
        &self,
        which: Attribute,
        ty: Type,
        count: usize,
        values: *const c_void,
    ) -> Result<(), DriverError> {
        // SAFETY: so many values of the type that is named, which the library copies.
        checked("cudnnBackendSetAttribute", unsafe {
            functions::cudnnBackendSetAttribute(self.raw(), which, ty, count as i64, values)
        })
    }

    /// Makes it final: attributes stay as they are from here on.
    pub(super) fn finalized(self) -> Result<Descriptor, DriverError> {
        // SAFETY: a descriptor that was made.
        checked("cudnnBackendFinalize", unsafe { functions::cudnnBackendFinalize(self.raw()) })?;
        Ok(self)
    }

    /// One number that is an attribute.
    pub(super) fn number(&self, which: Attribute) -> Result<i64, DriverError> {
        let (mut count, mut number) = (0, 0i64);
        // SAFETY: there is room for the one number that is asked for.
        checked("cudnnBackendGetAttribute", unsafe {
            let to = (&raw mut number).cast();
            functions::cudnnBackendGetAttribute(self.raw(), which, i64::TYPE, 1, &raw mut count, to)
        })?;
        Ok(number)
    }

    /// The notes on an engine's numbers, as the library counts them.
    pub(super) fn notes(&self, which: Attribute) -> Result<Vec<u32>, DriverError> {
        // More than there are kinds of; later versions may have notes that are not known here, so that
        // they stay numbers.
        let (mut count, mut notes) = (0, [0u32; 64]);
        let ty = Type::CUDNN_TYPE_NUMERICAL_NOTE;
        // SAFETY: there is room for so many, and as many are written as are counted, if not fewer.
        checked("cudnnBackendGetAttribute", unsafe {
            let (most, to) = (notes.len() as i64, notes.as_mut_ptr().cast());
            functions::cudnnBackendGetAttribute(self.raw(), which, ty, most, &raw mut count, to)
        })?;
        Ok(notes[..(count.max(0) as usize).min(notes.len())].to_vec())
    }

    /// Descriptors that are an attribute, `most` of them at most.
    pub(super) fn others(
        &self,
        which: Attribute,
        kind: Kind,
        most: usize,
    ) -> Result<Vec<Descriptor>, DriverError> {
        // The library fills descriptors that were made before.
        let mut made = (0..most).map(|_| Descriptor::new(kind)).collect::<Result<Vec<_>, _>>()?;
        let mut raw: Vec<_> = made.iter().map(Descriptor::raw).collect();
        let (mut count, ty) = (0, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR);
        // SAFETY: as many as there is room for.
        checked("cudnnBackendGetAttribute", unsafe {
            let to = raw.as_mut_ptr().cast();
            functions::cudnnBackendGetAttribute(
                self.raw(),
                which,
                ty,
                most as i64,
                &raw mut count,
                to,
            )
        })?;
        made.truncate(count.max(0) as usize);
        Ok(made)
    }

    /// Runs a plan on what a variant pack names.
    ///
    /// # Safety
    /// Addresses in the pack are those of what the plan reads and writes, and of its workspace.
    pub(super) unsafe fn execute(
        &self,
        handle: sys::cudnnHandle_t,
        pack: &Descriptor,
    ) -> Result<(), DriverError> {
        // SAFETY: the caller's promise; both are final.
        checked("cudnnBackendExecute", unsafe {
            functions::cudnnBackendExecute(handle, self.raw(), pack.raw())
        })
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made by the library, given back once.
        let _ = unsafe { functions::cudnnBackendDestroyDescriptor(self.raw()) };
    }
}
