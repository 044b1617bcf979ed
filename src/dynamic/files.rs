//! The sizes that data files need: what a run compiles before its first step.

use super::{Dynamic, DynamicError, Sizes, sizes};
use crate::artifact::Target;
use crate::data::Npz;
use arenic_ir::TensorType;

/// What came of the sizes of files.
#[derive(Debug, Default)]
pub(crate) struct Fitted {
    /// Steps that were added.
    pub(crate) added: Vec<Target>,
    /// What does not fit, each with the file that needs it.
    pub(crate) refused: Vec<(usize, DynamicError)>,
    /// Files of which nothing fits, by their places.
    pub(crate) left_out: Vec<usize>,
}

/// Sizes of the variants that a file's batches are cut for.
struct Wanted {
    sizes: Sizes,
    /// The place of the dimension of rows among the sizes.
    rows: usize,
    /// How many rows there are, in sizes of that dimension.
    total: u64,
}

impl Dynamic {
    /// Compiles what files need beside the steps of a target, whose variants these are: for axes of another size a
    /// batch as large as the largest that there is, and for the last rows, unless they are filled up, a batch of
    /// their number.
    ///
    /// # Errors
    /// A step cannot be compiled, though it may fit.
    pub(crate) fn fit(
        &mut self,
        variants: &[&Target],
        files: &[Npz],
        pads: bool,
    ) -> Result<Fitted, DynamicError> {
        let mut fitted = Fitted::default();
        let structures: Vec<String> = self.structures().map(str::to_owned).collect();
        for (place, file) in files.iter().enumerate() {
            let mut fits = false;
            let mut is_dynamic = false;
            for structure in &structures {
                let of = variants.iter().filter(|target| target.structure == *structure);
                let of: Vec<Vec<(String, TensorType)>> = of.map(|target| inputs(target)).collect();
                let known: Vec<Sizes> = self.known(structure, &of, &fitted.added);
                let Some(wanted) = self.wanted(structure, &of, file) else { continue };
                is_dynamic = true;
                let mut there: Vec<u64> = known
                    .iter()
                    .filter(|sizes| agree(sizes, &wanted))
                    .map(|sizes| sizes[wanted.rows].1)
                    .collect();
                let largest = known.iter().map(|sizes| sizes[wanted.rows].1).max().unwrap_or(1);
                let mut add = |rows: u64, there: &mut Vec<u64>| {
                    let mut sizes = wanted.sizes.clone();
                    sizes[wanted.rows].1 = rows;
                    let others: Vec<&Target> =
                        variants.iter().copied().chain(&fitted.added).collect();
                    match self.step(structure, &sizes, &others) {
                        Ok(target) => {
                            fitted.added.push(target);
                            there.push(rows);
                            Ok(())
                        }
                        Err(e @ DynamicError::Misfit { .. }) => {
                            fitted.refused.push((place, e));
                            Ok(())
                        }
                        Err(e) => Err(e),
                    }
                };
                if there.is_empty() && (wanted.total >= largest || pads) {
                    add(largest, &mut there)?;
                }
                let left = left(wanted.total, &there);
                if left > 0 && left < largest && (there.is_empty() || !pads) {
                    add(left, &mut there)?;
                }
                fits |= there.iter().any(|&rows| rows <= wanted.total || pads);
            }
            if is_dynamic && !fits {
                fitted.left_out.push(place);
            }
        }
        Ok(fitted)
    }

    /// Sizes of the variants of a structure.
    fn known(
        &self,
        structure: &str,
        of: &[Vec<(String, TensorType)>],
        added: &[Target],
    ) -> Vec<Sizes> {
        let Some(first) = of.first() else { return Vec::new() };
        let added = added.iter().filter(|target| target.structure == structure).map(inputs);
        let all = of.iter().cloned().chain(added);
        let solved = all.filter_map(|inputs| {
            let shapes = inputs.iter().map(|(name, ty)| (name.as_str(), &ty.shape[..]));
            self.sizes(structure, &borrowed(first), &shapes.collect::<Vec<_>>())
        });
        solved.collect()
    }

    /// What a file needs of a structure; `None` where its axes are of no size of the dimensions, or where they
    /// have no rows.
    fn wanted(
        &self,
        structure: &str,
        of: &[Vec<(String, TensorType)>],
        file: &Npz,
    ) -> Option<Wanted> {
        let (source, first) = (self.source(structure)?, of.first()?);
        let (mut rows, mut total, mut shapes) = (None, None, Vec::new());
        for (name, axes) in &source.inputs {
            let Some(array) = file.array(name) else { continue };
            let (_, ty) = first.iter().find(|(input, _)| input == name)?;
            let mut shape = array.ty().shape.clone();
            let at = sizes::axis(&source.dims, axes, ty, 0);
            if let (Some((place, each)), true) = (at, shape.len() == ty.rank()) {
                let count = (shape[0] / each) as u64;
                if *rows.get_or_insert(place) != place || *total.get_or_insert(count) != count {
                    return None;
                }
                // The size of a batch is not the file's.
                shape[0] = ty.shape[0];
            }
            shapes.push((name.as_str(), shape));
        }
        let shapes: Vec<(&str, &[usize])> =
            shapes.iter().map(|(name, shape)| (*name, &shape[..])).collect();
        let sizes = self.sizes(structure, &borrowed(first), &shapes)?;
        Some(Wanted { sizes, rows: rows?, total: total.filter(|&total| total > 0)? })
    }
}

/// Names and types of what a target is fed.
fn inputs(target: &Target) -> Vec<(String, TensorType)> {
    let whole = target.whole_step().ok().flatten();
    let g = whole.as_ref().map_or(&target.graph, |whole| whole.graph());
    let inputs = g.inputs().map(|v| (g.values[v].name.clone(), g.ty(v).clone()));
    inputs.filter(|(name, _)| !target.fed.contains_key(name)).collect()
}

fn borrowed(inputs: &[(String, TensorType)]) -> Vec<(&str, &TensorType)> {
    inputs.iter().map(|(name, ty)| (name.as_str(), ty)).collect()
}

/// True where sizes are those that are wanted but for the rows.
fn agree(sizes: &Sizes, wanted: &Wanted) -> bool {
    let mut pairs = sizes.iter().zip(&wanted.sizes).enumerate();
    pairs.all(|(i, (a, b))| i == wanted.rows || a == b)
}

/// The rows that no batch takes: each batch is one of exactly as many rows as are left, or else the largest
/// that is not larger.
fn left(total: u64, there: &[u64]) -> u64 {
    let mut left = total;
    while let Some(&rows) = there.iter().filter(|&&rows| 0 < rows && rows <= left).max() {
        left %= rows;
    }
    left
}
