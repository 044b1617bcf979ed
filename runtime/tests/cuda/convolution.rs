use super::Case;
use super::random::Random;

pub(super) fn cases(_r: &mut Random) -> Vec<Case> {
    Vec::new()
}
