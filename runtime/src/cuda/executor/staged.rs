//! Pinned memory beside the arena: what goes to the device before each step, what comes back, and
//! the piece through which homes are filled and read.

use crate::cuda::driver::{Driver, DriverError, StreamHandle};
use crate::kernel::{Draw, KernelError};
use arenic_ir::graph::{Def, Graph, ValueId};
use arenic_ir::program::{Home, Program, Range};

/// Seed, step and round, then what was refused: at the begin of what is staged, and on the device.
const DRAW_BYTES: u64 = size_of::<[u64; 3]>() as u64;
const REFUSAL_BYTES: u64 = size_of::<[u64; 4]>() as u64;

/// Alignment of arenas and of what is staged.
pub(super) const ALIGN: u64 = 256;

/// Bytes of homes that are filled or read at a time.
const PIECE: u64 = 4 << 20;

/// Where what is fed begins on a side: behind what goes with every step, and what comes back.
const FIRST_STAGED: u64 = 2 * ALIGN;

/// One of the two sides of what is staged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Side {
    #[default]
    Even,
    Odd,
}

impl Side {
    pub(super) const BOTH: [Side; 2] = [Side::Even, Side::Odd];

    /// The one that is not this.
    pub(super) fn other(self) -> Side {
        match self {
            Side::Even => Side::Odd,
            Side::Odd => Side::Even,
        }
    }
}

/// Pinned bytes beside the arena: what goes to the device before each step and comes back, twice,
/// since the next step is fed while one runs; then the piece through which other homes are filled.
pub(super) struct Staged {
    /// The whole allocation: both sides, and the piece.
    address: u64,
    side_bytes: u64,
    /// The fed inputs.
    pub(super) inputs: Vec<Fed>,
    /// Of each output its place in the device arena and its place on a side.
    pub(super) outputs: Vec<(Range, u64)>,
    /// Device memory of seed, step and round, and of what is refused.
    pub(super) draw: u64,
    pub(super) refusal: u64,
}

/// An input that is fed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fed {
    pub(super) value: ValueId,
    pub(super) home: Range,
    /// Its place on a side.
    pub(super) at: u64,
    /// Where it may wait for the next step while one runs.
    pub(super) ahead: Option<Range>,
}

impl Staged {
    /// For operators without a program.
    pub(super) fn of_nothing(driver: &impl Driver) -> Result<Staged, DriverError> {
        Staged::with(FIRST_STAGED, Vec::new(), Vec::new(), driver)
    }

    /// Places of everything that is fed or comes back, behind seed, step, round and refusal.
    pub(super) fn new(
        g: &Graph,
        program: &Program,
        driver: &impl Driver,
    ) -> Result<Staged, DriverError> {
        let mut at = FIRST_STAGED;
        let mut place = |bytes: u64| {
            let here = at;
            at += bytes.next_multiple_of(ALIGN);
            here
        };
        let fed = |h: &&Home| g.values.get(h.value).is_some_and(|v| matches!(v.def, Def::Input));
        let inputs = program.homes.iter().filter(fed).map(|&Home { value, range }| {
            let ahead = program.ahead.iter().find(|ahead| ahead.value == value);
            Fed { value, home: range, at: place(range.len), ahead: ahead.map(|ahead| ahead.range) }
        });
        let inputs = inputs.collect();
        let outputs = program.outputs.iter().map(|&range| (range, place(range.len))).collect();
        Staged::with(at, inputs, outputs, driver)
    }

    fn with(
        side_bytes: u64,
        inputs: Vec<Fed>,
        outputs: Vec<(Range, u64)>,
        driver: &impl Driver,
    ) -> Result<Staged, DriverError> {
        let draw = driver.allocate(DRAW_BYTES + REFUSAL_BYTES)?;
        let address = driver.allocate_pinned(bytes(side_bytes))?;
        Ok(Staged { address, side_bytes, inputs, outputs, draw, refusal: draw + DRAW_BYTES })
    }

    /// Where a side begins: with seed, step, round and that nothing is refused.
    pub(super) fn side(&self, side: Side) -> u64 {
        match side {
            Side::Even => self.address,
            Side::Odd => self.address + self.side_bytes,
        }
    }

    /// Sends seed, step, round and that nothing is refused to the device.
    pub(super) fn send_draw(
        &self,
        side: Side,
        driver: &impl Driver,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let bytes = DRAW_BYTES + REFUSAL_BYTES;
        // SAFETY: both have room for these, and live as long as the driver.
        unsafe { driver.copy(stream, self.side(side), self.draw, bytes) }
    }

    /// Fetches what was refused from the device.
    pub(super) fn fetch_refusal(
        &self,
        side: Side,
        driver: &impl Driver,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        // SAFETY: as above.
        unsafe { driver.copy(stream, self.refusal, self.came_back(side), REFUSAL_BYTES) }
    }

    /// Fills memory of the device from an address on, which has so many bytes.
    pub(super) fn put(
        &self,
        driver: &impl Driver,
        stream: StreamHandle,
        mut address: u64,
        bytes: &[u8],
    ) -> Result<(), DriverError> {
        for piece in bytes.chunks(self.room() as usize) {
            let (through, len) = (self.piece(), piece.len());
            // SAFETY: the staged bytes have room for a piece and nothing else uses them now; the
            // address is of so much memory.
            unsafe {
                std::ptr::copy_nonoverlapping(piece.as_ptr(), through as *mut u8, len);
                driver.copy(stream, through, address, len as u64)?;
            }
            driver.synchronize(stream)?;
            address += len as u64;
        }
        Ok(())
    }

    /// Where refusals come back.
    fn came_back(&self, side: Side) -> u64 {
        self.side(side) + ALIGN
    }

    /// Where pieces of homes go through, and their size.
    pub(super) fn piece(&self) -> u64 {
        self.address + 2 * self.side_bytes
    }

    pub(super) fn room(&self) -> u64 {
        PIECE
    }

    /// Writes seed, step and round, and that nothing is refused.
    pub(super) fn put_draw(&self, side: Side, draw: Draw) {
        let words = [draw.seed, draw.step, draw.round, 0, 0, 0, 0];
        // SAFETY: pinned memory with room for these words, which no copy uses before the side's
        // step begins.
        unsafe { std::ptr::write(self.side(side) as *mut [u64; 7], words) };
    }

    /// The node that refused in this side's step, and why.
    pub(super) fn refusal(&self, side: Side) -> Option<(u64, KernelError)> {
        // SAFETY: pinned memory that came back from the device; the step has ended.
        let words: [u64; 4] = unsafe { std::ptr::read(self.came_back(side) as *const _) };
        let [node, code, value, extent] = words;
        let (node, value) = (node.checked_sub(1)?, value.cast_signed());
        let error = match code {
            1 => KernelError::IndexOutOfRange { index: value, extent: extent as usize },
            2 => KernelError::DivisionByZero,
            _ => KernelError::Ratio(f64::from_bits(value.cast_unsigned()).to_string()),
        };
        Some((node, error))
    }
}

/// Bytes of both sides and the piece.
fn bytes(side_bytes: u64) -> u64 {
    2 * side_bytes + PIECE
}
