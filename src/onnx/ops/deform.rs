//! Deformable convolution (Dai et al., 2017; with masks, Zhu et al., 2018): a convolution that looks
//! at places which an operand shifts. The image is sampled there, then multiplied.

use super::compose::Made;
use super::spatial::{Between, Beyond, Edges, each, sampled, taps};
use super::{Row, row};
use crate::onnx::context::{Built, Cx};
use crate::onnx::error::Fault;
use crate::onnx::fold::scalar_bytes;
use arenic_ir::{DType, Op, TensorType, ValueId};

const DEFORM_CONV: &[&str] =
    &["dilations", "group", "kernel_shape", "offset_group", "pads", "strides"];

pub(super) const ROWS: &[Row] = &[row("DeformConv", (3, 5), DEFORM_CONV, deform_conv).since(19)];

/// The extents of one.
struct Shifted {
    dtype: DType,
    batch: usize,
    channels: usize,
    image: Vec<usize>,
    filters: usize,
    kernel: Vec<usize>,
    results: Vec<usize>,
    /// Groups of channels that have their own filters.
    groups: usize,
    /// Groups of channels that have their own shifts.
    shifts: usize,
    strides: Vec<usize>,
    dilations: Vec<usize>,
    pads: Vec<usize>,
}

/// `x[N,C,…], w[M,C/groups,…], shifts[N,S·K·n,…][, bias[M]][, mask[N,S·K,…]] → y[N,M,…]`, with `K`
/// places in a kernel of `n` axes, and `S` groups of channels with shifts of their own.
fn deform_conv(cx: &mut Cx) -> Built {
    let (x, w, shift) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let (bias, mask) = (cx.optional(3)?, cx.optional(4)?);
    let of = Shifted::new(cx, x, w, shift)?;
    let places: usize = of.kernel.iter().product();
    let points: usize = of.results.iter().product();
    let seen = places.checked_mul(points).ok_or("its result is too large")?;
    let (rows, own) = (of.batch * of.shifts, of.channels / of.shifts);
    let elements: usize = of.image.iter().product();
    let image = cx.reshape(x, vec![rows, own, elements])?;
    let image = cx.transposed(image, vec![0, 2, 1])?;
    let mut axes = Vec::new();
    for (i, &extent) in of.image.iter().enumerate() {
        let place = of.place(cx, shift, i)?;
        let place = cx.reshape(place, vec![rows, seen, 1])?;
        let edges = Edges { extent, corners: true, beyond: Beyond::Zeros };
        axes.push((edges, taps(cx, edges, place, Between::Linear)?));
    }
    let mut columns = sampled(cx, image, &axes)?;
    if let Some(mask) = mask {
        let mask = of.checked(cx, "mask", mask, of.shifts * places)?;
        let mask = cx.reshape(mask, vec![rows, seen, 1])?;
        columns = cx.mul(columns, mask)?;
    }
    // Channels before places, as filters have them.
    let columns = cx.reshape(columns, vec![rows, places, points, own])?;
    let columns = cx.transposed(columns, vec![0, 3, 1, 2])?;
    let inner = of.channels / of.groups * places;
    let columns = cx.reshape(columns, vec![of.batch, of.groups, inner, points])?;
    let filters = cx.reshape(w, vec![of.groups, of.filters / of.groups, inner])?;
    let product = Op::MatMul { trans_a: false, trans_b: false };
    let y = cx.emit1(product, vec![filters, columns])?;
    let shape = [of.batch, of.filters].into_iter().chain(of.results.iter().copied()).collect();
    let mut y = cx.reshape(y, shape)?;
    if let Some(bias) = bias {
        let ty = cx.ty(bias);
        if ty.shape != [of.filters] {
            return Err(Fault(format!("its bias is {ty}, not of {} filters", of.filters)));
        }
        let shape = [of.filters].into_iter().chain(of.results.iter().map(|_| 1)).collect();
        let bias = cx.reshape(bias, shape)?;
        y = cx.add(y, bias)?;
    }
    Ok(vec![Some(y)])
}

impl Shifted {
    fn new(cx: &Cx, x: ValueId, w: ValueId, shift: ValueId) -> Result<Shifted, Fault> {
        let (ty, of_w, of_shift) = (cx.ty(x), cx.ty(w), cx.ty(shift));
        let a = cx.attributes();
        let count = |name: &str| {
            let n = a.int_or(name, 1)?;
            usize::try_from(n)
                .ok()
                .filter(|&n| n > 0)
                .ok_or_else(|| Fault(format!("{name} is {n}")))
        };
        let (groups, shifts) = (count("group")?, count("offset_group")?);
        let n = ty.rank().saturating_sub(2);
        let misfit = || Fault(format!("filters {of_w} do not fit {ty} in {groups} groups"));
        let (&[batch, channels, ref image @ ..], &[filters, inner, ref kernel @ ..]) =
            (&ty.shape[..], &of_w.shape[..])
        else {
            return Err(misfit());
        };
        let fits = (1..=3).contains(&n)
            && kernel.len() == n
            && inner.checked_mul(groups) == Some(channels)
            && channels.is_multiple_of(shifts)
            && filters.is_multiple_of(groups)
            && ty.dtype.is_float()
            && !image.contains(&0)
            && !kernel.contains(&0);
        if !fits {
            return Err(misfit());
        }
        if each(&a, "kernel_shape", n, 0)? != kernel && a.ints("kernel_shape")?.is_some() {
            return Err(Fault(format!("attribute `kernel_shape` is not that of {of_w}")));
        }
        let (strides, dilations) = (each(&a, "strides", n, 1)?, each(&a, "dilations", n, 1)?);
        let pads = each(&a, "pads", 2 * n, 0)?;
        let results = of_shift.shape.get(2..).unwrap_or_default().to_vec();
        let (image, kernel) = (image.to_vec(), kernel.to_vec());
        for i in 0..n {
            let span = dilations[i].checked_mul(kernel[i] - 1).and_then(|s| s.checked_add(1));
            let whole = image[i].checked_add(pads[i]).and_then(|s| s.checked_add(pads[n + i]));
            let free = whole.zip(span).and_then(|(whole, span)| whole.checked_sub(span));
            let extent = free.and_then(|free| free.checked_div(strides[i])).map(|d| d + 1);
            if extent.is_none() || results.get(i).copied() != extent {
                return Err(Fault(format!("shifts {of_shift} do not fit {ty} under {of_w}")));
            }
        }
        let dtype = ty.dtype;
        let of = Shifted {
            dtype,
            batch,
            channels,
            image,
            filters,
            kernel,
            results,
            groups,
            shifts,
            strides,
            dilations,
            pads,
        };
        of.checked(cx, "offset", shift, shifts * n * of.kernel.iter().product::<usize>())?;
        Ok(of)
    }

    /// An operand that has so many numbers for each of the results.
    fn checked(&self, cx: &Cx, name: &str, x: ValueId, count: usize) -> Made {
        let ty = cx.ty(x);
        let shape = [self.batch, count].into_iter().chain(self.results.iter().copied());
        if ty.dtype != self.dtype || !ty.shape.iter().copied().eq(shape) {
            return Err(Fault(format!(
                "its {name} is {ty}, without {count} numbers for each result"
            )));
        }
        Ok(x)
    }

    /// Where along axis `i` each place of the kernel looks for each result.
    fn place(&self, cx: &mut Cx, shift: ValueId, i: usize) -> Made {
        let (n, places) = (self.image.len(), self.kernel.iter().product::<usize>());
        let points: usize = self.results.iter().product();
        let shape = vec![self.batch * self.shifts, places, n, points];
        let shift = cx.reshape(shift, shape)?;
        let shift = super::position::part(cx, shift, 2, i, 1, 1)?;
        let shift = cx.reshape(shift, vec![self.batch * self.shifts, places, points])?;
        // Without a shift: the kernel's place from the corner of the window.
        let within = |of: &[usize]| {
            let inner: usize = of[i + 1..].iter().product();
            let extent = of[i];
            move |at: usize| (at / inner % extent) as f64
        };
        let (in_kernel, in_results) = (within(&self.kernel), within(&self.results));
        let (by, stride, pad) = (self.dilations[i], self.strides[i], self.pads[i]);
        let list = |numbers: Vec<f64>| -> Vec<u8> {
            numbers.into_iter().flat_map(|x| scalar_bytes(self.dtype, x)).collect()
        };
        let corner = |at: usize| in_results(at) * stride as f64 - pad as f64;
        let kernel = list((0..places).map(|at| in_kernel(at) * by as f64).collect());
        let windows = list((0..points).map(corner).collect());
        if !cx.b.spend((kernel.len() + windows.len()) as u64) {
            return Err("the model's constants take too much memory".into());
        }
        let kernel = cx.b.constant(TensorType::new(self.dtype, [places, 1]), kernel);
        let windows = cx.b.constant(TensorType::new(self.dtype, [points]), windows);
        let here = cx.add(kernel, windows)?;
        cx.add(shift, here)
    }
}
