//! What a reduction reads: elements of a tensor, or what is computed of some a segment at a time.

use super::number::Number;
use arenic_backends::reduce::SEGMENT;
use std::mem::MaybeUninit;

/// What is reduced, in row-major order.
pub(super) trait Terms<T>: Sync {
    /// How many.
    fn len(&self) -> usize;

    /// So many from one on, at most a segment; where they are not there yet, in `room`.
    fn run<'a>(&'a self, at: usize, len: usize, room: &'a mut Room<T>) -> &'a [T];
}

/// Room for a segment.
pub(super) type Room<T> = [MaybeUninit<T>; SEGMENT];

impl<T: Number> Terms<T> for &[T] {
    fn len(&self) -> usize {
        <[T]>::len(self)
    }

    #[inline(always)]
    fn run<'a>(&'a self, at: usize, len: usize, _: &'a mut Room<T>) -> &'a [T] {
        &self[at..][..len]
    }
}

/// The first `n` elements of a room, each with this value. What a room has beyond them costs nothing.
#[inline(always)]
pub(super) fn filled<T: Copy>(room: &mut [MaybeUninit<T>], n: usize, value: T) -> &mut [T] {
    let room = &mut room[..n];
    for element in room.iter_mut() {
        element.write(value);
    }
    // SAFETY: each was just written.
    unsafe { std::slice::from_raw_parts_mut(room.as_mut_ptr().cast(), n) }
}
