//! Pinned memory beside the arena: what goes to the device before each step, what comes back, and
//! the piece through which homes are filled and read.

use crate::cuda::driver::{Driver, DriverError, StreamHandle};
use crate::kernel::{Draw, KernelError};
use arenic_ir::graph::{Def, Graph, ValueId};
use arenic_ir::program::{Place, Program, Range};

/// Seed and step, then what was refused: at the begin of what is staged, and on the device.
const DRAW_BYTES: u64 = size_of::<[u64; 2]>() as u64;
const REFUSAL_BYTES: u64 = size_of::<[u64; 4]>() as u64;

/// Alignment of arenas and of what is staged.
pub(super) const ALIGN: u64 = 256;

/// Bytes of homes that are filled or read at a time.
const PIECE: u64 = 4 << 20;

/// Where what is fed begins: behind what goes with every step, what comes back, and the piece
/// through which other homes are filled.
const FIRST_STAGED: u64 = 2 * ALIGN + PIECE;

/// Pinned bytes beside the arena: what goes to the device before each step and comes back.
pub(super) struct Staged {
    /// The whole allocation.
    pub(super) address: u64,
    /// Of each fed input the home and its place here.
    pub(super) inputs: Vec<(ValueId, Range, u64)>,
    /// Of each output its place in the device arena and its place here.
    pub(super) outputs: Vec<(Range, u64)>,
    /// Device memory of seed and step, and of what is refused.
    pub(super) draw: u64,
    pub(super) refusal: u64,
}

impl Staged {
    /// For operators without a program.
    pub(super) fn of_nothing(driver: &impl Driver) -> Result<Staged, DriverError> {
        Staged::with(FIRST_STAGED, Vec::new(), Vec::new(), driver)
    }

    /// Places of everything that is fed or comes back, behind seed, step and refusal.
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
        let fed = |h: &&Place| g.values.get(h.value).is_some_and(|v| matches!(v.def, Def::Input));
        let inputs =
            program.homes.iter().filter(fed).map(|h| (h.value, h.range, place(h.range.len)));
        let inputs = inputs.collect();
        let outputs = program.outputs.iter().map(|&range| (range, place(range.len))).collect();
        Staged::with(at, inputs, outputs, driver)
    }

    fn with(
        bytes: u64,
        inputs: Vec<(ValueId, Range, u64)>,
        outputs: Vec<(Range, u64)>,
        driver: &impl Driver,
    ) -> Result<Staged, DriverError> {
        let draw = driver.allocate(DRAW_BYTES + REFUSAL_BYTES)?;
        let address = driver.allocate_pinned(bytes)?;
        Ok(Staged { address, inputs, outputs, draw, refusal: draw + DRAW_BYTES })
    }

    /// Sends seed, step and that nothing is refused to the device.
    pub(super) fn send_draw(
        &self,
        driver: &impl Driver,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let bytes = DRAW_BYTES + REFUSAL_BYTES;
        // SAFETY: both have room for these, and live as long as the driver.
        unsafe { driver.copy(stream, self.address, self.draw, bytes) }
    }

    /// Fetches what was refused from the device.
    pub(super) fn fetch_refusal(
        &self,
        driver: &impl Driver,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        // SAFETY: as above.
        unsafe { driver.copy(stream, self.refusal, self.came_back(), REFUSAL_BYTES) }
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

    pub(super) fn bytes(&self) -> u64 {
        let inputs = self.inputs.iter().map(|(_, range, _)| range.len);
        let outputs = self.outputs.iter().map(|(range, _)| range.len);
        let each = inputs.chain(outputs).map(|n| n.next_multiple_of(ALIGN));
        FIRST_STAGED + each.sum::<u64>()
    }

    /// Where refusals come back.
    fn came_back(&self) -> u64 {
        self.address + ALIGN
    }

    /// Where pieces of homes go through, and their size.
    pub(super) fn piece(&self) -> u64 {
        self.address + 2 * ALIGN
    }

    pub(super) fn room(&self) -> u64 {
        PIECE
    }

    /// Writes seed and step, and that nothing is refused.
    pub(super) fn put_draw(&self, draw: Draw) {
        let words = [draw.seed, draw.step, 0, 0, 0, 0];
        // SAFETY: pinned memory with room for these words, which no copy uses between steps.
        unsafe { std::ptr::write(self.address as *mut [u64; 6], words) };
    }

    /// The node that refused, and why.
    pub(super) fn refusal(&self) -> Option<(u64, KernelError)> {
        // SAFETY: pinned memory that came back from the device; the step has ended.
        let words: [u64; 4] = unsafe { std::ptr::read(self.came_back() as *const _) };
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
