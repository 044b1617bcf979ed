//! Products of matrices, for candle to differentiate. Candle's own ask the system how many
//! processors there are, each time, which takes longer than these products; and round as the
//! processor at hand does, where these give the same bits everywhere.

use candle_core::{CpuStorage, CustomOp2, Error, Layout, Result, Shape, Tensor};

/// The product of two matrices.
pub(super) fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    a.contiguous()?.apply_op2(&b.contiguous()?, Product)
}

struct Product;

impl CustomOp2 for Product {
    fn name(&self) -> &'static str {
        "product"
    }

    fn cpu_fwd(
        &self,
        a: &CpuStorage,
        of_a: &Layout,
        b: &CpuStorage,
        of_b: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, inner) = of_a.shape().dims2()?;
        let (same, columns) = of_b.shape().dims2()?;
        let (a, b) = (elements(a, of_a)?, elements(b, of_b)?);
        if inner != same {
            return Err(Error::Msg(format!("no product of {inner} columns and {same} rows")));
        }
        let mut result = vec![0.0; rows * columns];
        for i in 0..rows {
            let row = &mut result[i * columns..(i + 1) * columns];
            for k in 0..inner {
                let factor = a[i * inner + k];
                let terms = row.iter_mut().zip(&b[k * columns..(k + 1) * columns]);
                terms.for_each(|(sum, term)| *sum += factor * term);
            }
        }
        Ok((CpuStorage::F32(result), (rows, columns).into()))
    }

    fn bwd(
        &self,
        a: &Tensor,
        b: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let of_a = product(gradient, &b.t()?)?;
        let of_b = product(&a.t()?, gradient)?;
        Ok((Some(of_a), Some(of_b)))
    }
}

fn elements<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let all = storage.as_slice::<f32>()?;
    match layout.contiguous_offsets() {
        Some((first, end)) => Ok(&all[first..end]),
        None => Err(Error::RequiresContiguous { op: "product" }),
    }
}
