//! Results against expected values, as `numpy.testing.assert_allclose` compares them.

use super::case::{Case, Tensor};
use super::numbers::numbers;
use arenic_ir::{DType, TensorType};

/// Compares one output: floats within the test's tolerances, all else exactly.
pub(crate) fn compare(
    case: &Case,
    expected: &Tensor,
    ty: &TensorType,
    found: &[u8],
) -> Result<(), String> {
    let name = &expected.name;
    if *ty != expected.ty {
        return Err(format!("`{name}` is {ty}, not {}", expected.ty));
    }
    if !ty.dtype.is_float() && found == expected.bytes {
        return Ok(());
    }
    let (a, b) = (numbers(ty, found), numbers(ty, &expected.bytes));
    let size = ty.dtype.size() as usize;
    // The suite's tolerances are those of wider floats: of `bf16` neighbours are up to 2⁻⁷ apart,
    // and what is several operators in one place and one in the other may be two of them off.
    let rtol = if ty.dtype == DType::Bf16 { case.rtol.max(1.0 / 64.0) } else { case.rtol };
    let differs = |&i: &usize| {
        if ty.dtype.is_float() {
            !close(a[i], b[i], (case.atol, rtol))
        } else {
            let at = i * size..(i + 1) * size;
            found[at.clone()] != expected.bytes[at]
        }
    };
    let wrong: Vec<usize> = (0..a.len()).filter(differs).collect();
    let Some(&first) = wrong.first() else { return Ok(()) };
    Err(format!(
        "`{name}` ({ty}): {} of {} elements differ; element {first} is {}, not {}",
        wrong.len(),
        a.len(),
        a[first],
        b[first]
    ))
}

fn close(found: f64, expected: f64, (atol, rtol): (f64, f64)) -> bool {
    if found.is_nan() || expected.is_nan() {
        return found.is_nan() && expected.is_nan();
    }
    // Equal infinities have no difference.
    found == expected
        || (expected.is_finite() && (found - expected).abs() <= atol + rtol * expected.abs())
}
