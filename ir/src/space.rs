//! Memory spaces: where arenas are.

use std::fmt;

/// A memory space. Each has one arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// Where kernels run: the memory of the target, whatever it is.
    Device,
    /// Host memory that swapped buffers go to.
    Host,
}

impl Space {
    /// All spaces.
    pub const ALL: [Space; 2] = [Space::Device, Space::Host];

    /// The name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Space::Device => "device",
            Space::Host => "host",
        }
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One figure per space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerSpace<T> {
    /// Of [`Space::Device`].
    pub device: T,
    /// Of [`Space::Host`].
    pub host: T,
}

impl PerSpace<u64> {
    /// Of each space the larger one of two sizes.
    pub fn largest(self, other: Self) -> Self {
        PerSpace { device: self.device.max(other.device), host: self.host.max(other.host) }
    }
}

impl<T> std::ops::Index<Space> for PerSpace<T> {
    type Output = T;
    fn index(&self, space: Space) -> &T {
        match space {
            Space::Device => &self.device,
            Space::Host => &self.host,
        }
    }
}

impl<T> std::ops::IndexMut<Space> for PerSpace<T> {
    fn index_mut(&mut self, space: Space) -> &mut T {
        match space {
            Space::Device => &mut self.device,
            Space::Host => &mut self.host,
        }
    }
}
