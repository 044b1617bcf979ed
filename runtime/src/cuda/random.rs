use super::lower::Site;

pub(super) fn lower(_site: &mut Site) {}
