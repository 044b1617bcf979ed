//! Sizes of dimensions from shapes.

use crate::onnx::ONLY_DIM;
use arenic_ir::TensorType;

/// Sizes of dimensions by name, in the order of the options.
pub(crate) type Sizes = Vec<(String, u64)>;

/// The name of the variant of these sizes.
pub(super) fn name(structure: &str, sizes: &[(String, u64)]) -> String {
    let part = |(name, size): &(String, u64)| match &name[..] {
        ONLY_DIM => size.to_string(),
        name => format!("{name}={size}"),
    };
    let structure = Some(structure.to_owned()).filter(|name| !name.is_empty());
    structure.into_iter().chain(sizes.iter().map(part)).collect::<Vec<_>>().join(",")
}

/// An axis of an input: the place of its dimension among the sizes, and how many elements the axis has for
/// each of the dimension; `None` where it has no dimension with a size.
pub(super) fn axis(
    dims: &Sizes,
    axes: &[Option<String>],
    first: &TensorType,
    i: usize,
) -> Option<(usize, usize)> {
    let symbol = axes.get(i)?.as_ref()?;
    let place = dims.iter().position(|(name, _)| name == symbol || name == ONLY_DIM)?;
    let (extent, size) = (*first.shape.get(i)?, usize::try_from(dims[place].1).ok()?);
    (size > 0 && extent % size == 0 && extent > 0).then_some((place, extent / size))
}

/// The sizes at which inputs have these shapes; `None` if there are none. At the sizes `dims` they are as
/// in `first`.
pub(super) fn solved(
    dims: &Sizes,
    inputs: &[(String, Vec<Option<String>>)],
    first: &[(&str, &TensorType)],
    shapes: &[(&str, &[usize])],
) -> Option<Sizes> {
    let mut found: Vec<Option<u64>> = vec![None; dims.len()];
    for (name, shape) in shapes {
        let Some((_, axes)) = inputs.iter().find(|(input, _)| input == name) else { continue };
        let (_, ty) = first.iter().find(|(input, _)| input == name)?;
        if shape.len() != ty.rank() {
            return None;
        }
        for (i, &extent) in shape.iter().enumerate() {
            let Some((place, each)) = axis(dims, axes, ty, i) else {
                if extent != ty.shape[i] {
                    return None;
                }
                continue;
            };
            let size = (extent > 0 && extent % each == 0).then_some((extent / each) as u64)?;
            if *found[place].get_or_insert(size) != size {
                return None;
            }
        }
    }
    let size = |((name, usual), found): (&(String, u64), Option<u64>)| {
        (name.clone(), found.unwrap_or(*usual))
    };
    Some(dims.iter().zip(found).map(size).collect())
}

/// As [`solved`], of inputs of which only the numbers of elements are known: a number says the size of a
/// dimension where all others of the input are known.
pub(super) fn solved_by_elements(
    dims: &Sizes,
    inputs: &[(String, Vec<Option<String>>)],
    first: &[(&str, &TensorType)],
    elements: &[(&str, usize)],
) -> Option<Sizes> {
    let mut found: Vec<Option<u64>> = vec![None; dims.len()];
    let extents = |name: &str, found: &[Option<u64>]| {
        let (_, axes) = inputs.iter().find(|(input, _)| input == name)?;
        let (_, ty) = first.iter().find(|(input, _)| *input == name)?;
        let of = |i: usize| match axis(dims, axes, ty, i) {
            None => Ok(ty.shape[i] as u64),
            Some((place, each)) => {
                found[place].map(|size| size.saturating_mul(each as u64)).ok_or((place, each))
            }
        };
        Some((0..ty.rank()).map(of).collect::<Vec<Result<u64, (usize, usize)>>>())
    };
    loop {
        let one_is_open = |&(name, elements): &(&str, usize)| {
            let extents = extents(name, &found)?;
            let mut open = extents.iter().filter_map(|extent| extent.err());
            let (place, each) = open.next().filter(|_| open.next().is_none())?;
            let known = extents.iter().filter_map(|extent| extent.ok());
            let known = known.fold(each as u64, u64::saturating_mul).max(1);
            Some((place, elements as u64, known))
        };
        let Some((place, elements, known)) = elements.iter().find_map(one_is_open) else { break };
        found[place] = Some((elements > 0 && elements % known == 0).then_some(elements / known)?);
    }
    let size = |((name, usual), found): (&(String, u64), &Option<u64>)| {
        (name.clone(), found.unwrap_or(*usual))
    };
    let sizes: Sizes = dims.iter().zip(&found).map(size).collect();
    let found: Vec<Option<u64>> = sizes.iter().map(|(_, size)| Some(*size)).collect();
    let holds = |&(name, elements): &(&str, usize)| {
        let Some(extents) = extents(name, &found) else { return true };
        let all = extents.into_iter().filter_map(Result::ok).fold(1, u64::saturating_mul);
        all == elements as u64
    };
    elements.iter().all(holds).then_some(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arenic_ir::DType;

    #[test]
    fn shapes_say_sizes() {
        let dims = vec![("batch".to_owned(), 4), ("seq".to_owned(), 8)];
        let inputs = vec![
            ("x".to_owned(), vec![Some("batch".to_owned()), Some("seq".to_owned()), None]),
            ("m".to_owned(), vec![Some("seq".to_owned()), Some("seq".to_owned())]),
        ];
        // Two micro-batches: twice the model's rows.
        let (x, m) = (TensorType::new(DType::F32, [8, 8, 3]), TensorType::new(DType::F32, [8, 8]));
        let first = [("x", &x), ("m", &m)];
        let solved = |shapes: &[(&str, &[usize])]| {
            solved(&dims, &inputs, &first, shapes).map(|sizes| name("", &sizes))
        };
        assert_eq!(solved(&[("x", &[6, 5, 3]), ("m", &[5, 5])]).unwrap(), "batch=3,seq=5");
        assert_eq!(solved(&[("m", &[5, 5])]).unwrap(), "batch=4,seq=5");
        // Half a row, a fixed axis, two sizes of one dimension, another rank, none.
        assert_eq!(solved(&[("x", &[5, 5, 3])]), None);
        assert_eq!(solved(&[("x", &[6, 5, 4])]), None);
        assert_eq!(solved(&[("m", &[5, 6])]), None);
        assert_eq!(solved(&[("m", &[5])]), None);
        assert_eq!(solved(&[("m", &[0, 0])]), None);
        let solved = |elements: &[(&str, usize)]| {
            let sizes = solved_by_elements(&dims, &inputs, &first, elements);
            sizes.map(|sizes| name("", &sizes))
        };
        // The number of rows is open as long as that of columns is.
        assert_eq!(solved(&[("x", 8 * 8 * 3)]).unwrap(), "batch=4,seq=8");
        assert_eq!(solved(&[("x", 6 * 5 * 3)]), None);
        assert_eq!(name("deep", &[("batch".to_owned(), 3)]), "deep,batch=3");
        assert_eq!(name("", &[(String::new(), 3)]), "3");
    }
}
