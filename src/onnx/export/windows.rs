//! Padding with steps, and gradients of pools.

use super::ExportError;
use super::ops::sliding;
use super::writer::{Tensor, Writer, code, int, ints, signed, text};
use arenic_ir::op::Window;
use arenic_ir::{DType, TensorType};

impl Writer<'_> {
    /// Zeros, or what the value is, between elements where steps are larger than 1, then around.
    pub(super) fn pad(
        &mut self,
        x: &Tensor,
        y: &[String],
        (starts, steps, shape): (&[usize], &[usize], &[usize]),
        value: f64,
    ) {
        let value = self.scalar(x.ty.dtype, value);
        let (rank, mut extents, mut from) = (x.ty.rank(), x.ty.shape.clone(), x.name.clone());
        if steps.iter().any(|&s| s > 1) {
            // Each element becomes a row of its step's length, the last of which is cut.
            let pairs: Vec<usize> = extents.iter().flat_map(|&d| [d, 1]).collect();
            let apart = self.temporary();
            self.reshape_into(&from, &pairs, apart.clone());
            let after: Vec<usize> = steps.iter().flat_map(|&s| [0, s - 1]).collect();
            let pads = self.list(&signed(&[vec![0; 2 * rank], after].concat()));
            let rows = self.one("Pad", &[&apart, &pads, &value], vec![]);
            let wide: Vec<usize> = extents.iter().zip(steps).map(|(&d, &s)| d * s).collect();
            let joined = self.temporary();
            self.reshape_into(&rows, &wide, joined.clone());
            for (d, &s) in extents.iter_mut().zip(steps) {
                *d = d.saturating_sub(1) * s + usize::from(*d > 0);
            }
            let axes: Vec<usize> = (0..rank).collect();
            let lists = [vec![0; rank], extents.clone(), axes];
            let [first, ends, axes] = lists.map(|l| self.list(&signed(&l)));
            from = self.one("Slice", &[&joined, &first, &ends, &axes], vec![]);
        }
        let after = (0..rank).map(|i| shape[i].saturating_sub(starts[i] + extents[i]));
        let pads: Vec<usize> = starts.iter().copied().chain(after).collect();
        let pads = self.list(&signed(&pads));
        self.node_into("Pad", &[&from, &pads, &value], y.to_vec(), vec![]);
    }

    /// `dy, indices → dx`: zeros to which gradients are added where the pool took its elements.
    pub(super) fn max_pool_grad(
        &mut self,
        dy: &Tensor,
        indices: &str,
        y: &[String],
        (shape, column_major): (&[usize], bool),
    ) {
        let flat = self.list(&[-1]);
        let zero = self.scalar(dy.ty.dtype, 0.0);
        let [dy, indices] =
            [&dy.name, indices].map(|from| self.one("Reshape", &[from, &flat], vec![]));
        let count = self.list(&[shape.iter().product::<usize>() as i64]);
        let zeros = self.one("Expand", &[&zero, &count], vec![]);
        let attributes = vec![int("axis", 0), text("reduction", "add")];
        let sums = self.one("ScatterElements", &[&zeros, &indices, &dy], attributes);
        if !column_major {
            return self.reshape_into(&sums, shape, y[0].clone());
        }
        // Positions of reversed spatial axes.
        let perm: Vec<usize> = [0, 1].into_iter().chain((2..shape.len()).rev()).collect();
        let reversed: Vec<usize> = perm.iter().map(|&i| shape[i]).collect();
        let turned = self.temporary();
        self.reshape_into(&sums, &reversed, turned.clone());
        self.node_into("Transpose", &[&turned], y.to_vec(), vec![ints("perm", &perm)]);
    }

    /// The taps of a max pool over `shape` from the flat positions that they see.
    pub(super) fn taps_of_positions(
        &mut self,
        positions: &str,
        taps: &Tensor,
        window: &Window,
        shape: &[usize],
    ) {
        let mut flat: Option<String> = None;
        for d in 0..window.rank() {
            let x = self.digit(positions, &shape[2..], d);
            let start = self.window_starts(window, &taps.ty.shape[2..], d);
            let from_start = self.both("Sub", &x, &start);
            let dilation = self.scalar(DType::I64, window.dilations[d] as f64);
            let tap = self.both("Div", &from_start, &dilation);
            let kernel = self.scalar(DType::I64, window.kernel[d] as f64);
            flat = Some(match flat {
                None => tap,
                Some(flat) => {
                    let rows = self.both("Mul", &flat, &kernel);
                    self.both("Add", &rows, &tap)
                }
            });
        }
        let to = int("to", code(taps.ty.dtype).into());
        self.node_into("Cast", &[&flat.unwrap_or_default()], vec![taps.name.clone()], vec![to]);
    }

    /// The flat positions in `shape` that the taps of a max pool see.
    pub(super) fn positions_of_taps(
        &mut self,
        taps: &Tensor,
        window: &Window,
        shape: &[usize],
    ) -> String {
        let size: usize = shape[2..].iter().product();
        let planes: Vec<f64> =
            (0..shape[0] * shape[1]).map(|plane| (plane * size) as f64).collect();
        let ones = vec![1; window.rank()];
        let mut flat = self.numbers(DType::I64, &[&shape[..2], &ones[..]].concat(), &planes);
        let wide = self.one("Cast", &[&taps.name], vec![int("to", code(DType::I64).into())]);
        for d in 0..window.rank() {
            let tap = self.digit(&wide, &window.kernel, d);
            let dilation = self.scalar(DType::I64, window.dilations[d] as f64);
            let from_start = self.both("Mul", &tap, &dilation);
            let start = self.window_starts(window, &taps.ty.shape[2..], d);
            let x = self.both("Add", &from_start, &start);
            let stride: usize = shape[d + 3..].iter().product();
            let stride = self.scalar(DType::I64, stride as f64);
            let offset = self.both("Mul", &x, &stride);
            flat = self.both("Add", &flat, &offset);
        }
        flat
    }

    /// Index `d` of a flat index into a box of these extents, which may lie in a larger one.
    fn digit(&mut self, flat: &str, extents: &[usize], d: usize) -> String {
        let stride: usize = extents[d + 1..].iter().product();
        let stride = self.scalar(DType::I64, stride as f64);
        let extent = self.scalar(DType::I64, extents[d] as f64);
        let rows = self.both("Div", flat, &stride);
        self.both("Mod", &rows, &extent)
    }

    /// Where windows begin along spatial axis `d`, so that it broadcasts to a pool's result.
    fn window_starts(&mut self, window: &Window, output: &[usize], d: usize) -> String {
        let start = |o: usize| (o * window.strides[d]) as f64 - window.pads_begin[d] as f64;
        let starts: Vec<f64> = (0..output[d]).map(start).collect();
        let mut shape = vec![1; output.len()];
        shape[d] = output[d];
        self.numbers(DType::I64, &shape, &starts)
    }

    /// `dy → dx`: a transposed convolution by ones of what each element of a window gets.
    pub(super) fn average_pool_grad(
        &mut self,
        dy: &Tensor,
        y: &[String],
        window: &Window,
        (shape, count_include_pad): (&[usize], bool),
    ) -> Result<(), ExportError> {
        let (input, output) = (&shape[2..], &dy.ty.shape[2..]);
        // Per axis, how many taps count for each place of the window.
        let counted = |i: usize, o: usize| {
            let inside = |t: &usize| {
                let at = o * window.strides[i] + t * window.dilations[i];
                let end = input[i] + window.pads_begin[i];
                match count_include_pad {
                    true => at < end + window.pads_end[i],
                    false => (window.pads_begin[i]..end).contains(&at),
                }
            };
            (0..window.kernel[i]).filter(inside).count() as f64
        };
        let mut counts = vec![1.0];
        for (i, &extent) in output.iter().enumerate() {
            counts =
                counts.iter().flat_map(|c| (0..extent).map(move |o| c * counted(i, o))).collect();
        }
        let dtype = dy.ty.dtype;
        let counts = self.numbers(dtype, &[&[1, 1], output].concat(), &counts);
        let part = self.one("Div", &[&dy.name, &counts], vec![]);
        let one = self.scalar(dtype, 1.0);
        let weights = TensorType::new(dtype, [&[shape[1], 1], &window.kernel[..]].concat());
        let list = self.list(&signed(&weights.shape));
        let ones = self.one("Expand", &[&one, &list], vec![]);
        // What windows leave over at the end is added, where they hang over it is cut.
        let mut window = window.clone();
        let covered = window.unslide(output, &vec![0; output.len()])?;
        let mut output_padding = vec![0; output.len()];
        for i in 0..output.len() {
            output_padding[i] = input[i].saturating_sub(covered[i]);
            window.pads_end[i] += covered[i].saturating_sub(input[i]);
        }
        let mut attributes = sliding(&window);
        attributes.push(int("group", shape[1] as i64));
        attributes.push(ints("output_padding", &output_padding));
        self.node_into("ConvTranspose", &[&part, &ones], y.to_vec(), attributes);
        Ok(())
    }
}
