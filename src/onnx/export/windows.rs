//! Padding with steps, and gradients of pools.

use super::ExportError;
use super::ops::sliding;
use super::writer::{Tensor, Writer, int, ints, signed, text};
use arenic_ir::TensorType;
use arenic_ir::op::Window;

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
        x: &[Tensor],
        y: &[String],
        shape: &[usize],
        column_major: bool,
    ) {
        let flat = self.list(&[-1]);
        let [dy, indices] = [0, 1].map(|i| self.one("Reshape", &[&x[i].name, &flat], vec![]));
        let zero = self.scalar(x[0].ty.dtype, 0.0);
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
