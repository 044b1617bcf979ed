//! Exchanges between ranks: messages from operands and into results where they are, and into scratch
//! where terms are summed, which a kernel of ours does by rank.
//!
//! So an element's sum has the same bits wherever it is taken, at every level of sharding, in every run, and
//! the same as on CPUs. A library's own reduction would add in an order that follows from its rings.

use super::module::Argument;
use super::site::{LaunchSite, Parameter, THREADS, c_type, word_type};
use super::work::{Along, Message, Place, Work};
use arenic_backends::cuda::MESSAGES;
use arenic_backends::exchange::{Exchange, Run};
use arenic_ir::DType;
use arenic_ir::op::families::Collective;

pub(super) fn lower(site: &mut LaunchSite, op: Collective) {
    let exchange = Exchange::new(op, site.inputs, MESSAGES);
    match (op, exchange) {
        (Collective::OwnPart { ranks }, _) => own_part(site, *ranks),
        (Collective::AllGather { .. }, Some(exchange)) => gather(site, &exchange),
        (_, Some(exchange)) => {
            let keeps_all = matches!(op, Collective::AllReduce { .. });
            for piece in exchange.pieces() {
                let runs: Vec<Run> = exchange.runs(piece).collect();
                site.reduce(&exchange, &runs, keeps_all);
            }
        }
        // One rank has all there is.
        (_, None) => (0..site.inputs.len()).for_each(|i| site.copy(i, i)),
    }
}

/// What a rank keeps of a tensor that it has whole.
fn own_part(site: &mut LaunchSite, ranks: usize) {
    let (x, Some(y)) = (site.inputs[0], site.outputs[0]) else { return };
    let (part, word) = (y.elements(), word_type(x.dtype));
    debug_assert_eq!(part, x.elements().div_ceil(ranks.max(1)));
    let parameters = [site.input_as(0, word), Parameter::rank()];
    let parameters = parameters.into_iter().chain(site.output_as(0, word));
    let body = format!(
        "    const u64 at = rank * {part}ull + i;\n    y0[i] = at < {}ull ? x0[at] : {word}(0);\n",
        x.elements()
    );
    site.for_each(part, "u64", parameters, &body);
}

/// Every part goes to all ranks.
fn gather(site: &mut LaunchSite, exchange: &Exchange) {
    let mut messages = Vec::new();
    for (i, &part) in exchange.parts.iter().enumerate() {
        let Some(y) = site.outputs[i] else { continue };
        let part = part as u64 * y.dtype.size();
        let from = Place { of: Argument::Input(i), at: 0, stride: part, along: Along::Nothing };
        let to = Place { of: Argument::Output(i), along: Along::Sender, ..from };
        let (bytes, whole) = (part, y.bytes());
        messages.push(Message { from, to, bytes, part: Along::Sender, begins: part, at: 0, whole });
    }
    site.work.push(Work::Exchange { messages, with_itself: true });
}

impl LaunchSite<'_> {
    /// Sums runs of all operands by rank: a rank its own part, or all of it where that is direct. Of what
    /// `keeps_all` the sums then go to all.
    fn reduce(&mut self, exchange: &Exchange, runs: &[Run], keeps_all: bool) {
        let size = self.inputs[0].dtype.size();
        let slot = exchange.piece as u64 * size;
        let message = |run: &Run, from: Place, to: Place, part: Along| {
            let whole = self.inputs[run.operand].bytes();
            let begins = exchange.parts[run.operand] as u64 * size;
            let (at, bytes) = (run.within as u64 * size, run.len as u64 * size);
            Message { from, to, bytes, part, begins, at, whole }
        };
        // Terms go to the rank that sums them; where that is direct, to all.
        let part = if exchange.is_direct { Along::Nothing } else { Along::Receiver };
        let terms = |run: &Run| {
            let stride = exchange.parts[run.operand] as u64 * size;
            let at = run.within as u64 * size;
            let from = Place { of: Argument::Input(run.operand), at, stride, along: part };
            let at = run.at as u64 * size;
            let to = Place { of: Argument::Scratch(0), at, stride: slot, along: Along::Sender };
            message(run, from, to, part)
        };
        let messages = runs.iter().map(terms).collect();
        let sums = |run: &Run| {
            self.outputs[run.operand]?;
            let stride = exchange.parts[run.operand] as u64 * size;
            let at = run.within as u64 * size;
            let of = Argument::Output(run.operand);
            let place = Place { of, at, stride, along: Along::Sender };
            Some(message(run, place, place, Along::Sender))
        };
        let gathered: Vec<Message> = match keeps_all && !exchange.is_direct {
            true => runs.iter().filter_map(sums).collect(),
            false => Vec::new(),
        };
        self.work.push(Work::Exchange { messages, with_itself: false });
        runs.iter().for_each(|run| self.sum(exchange, run, keeps_all));
        if !gathered.is_empty() {
            self.work.push(Work::Exchange { messages: gathered, with_itself: false });
        }
    }

    /// Adds a run's terms by rank, of which the own one is in the operand.
    fn sum(&mut self, exchange: &Exchange, run: &Run, keeps_all: bool) {
        let (x, i) = (self.inputs[run.operand], run.operand);
        let Exchange { piece, is_direct, ranks, ref parts, .. } = *exchange;
        // A kernel knows its operands by these names, whatever their number is.
        let stored = if x.dtype == DType::Bf16 { "Bf16" } else { c_type(x.dtype) };
        let Some(output) = self.output_named(i, stored, "y") else { return };
        let input = self.input_named(i, stored, "x");
        let part = if is_direct { 0 } else { parts[i] };
        let [part, within, at, slot, whole, len] =
            [part, run.within, run.at, piece, x.elements(), run.len].map(|n| n as u64);
        let parameters = [
            input,
            Parameter::scratch(&format!("const {stored}"), "terms", at * x.dtype.size()),
            Parameter::rank(),
            Parameter::number("part", part),
            Parameter::number("within", within),
            Parameter::number("slot", slot),
            Parameter::number("whole", whole),
            Parameter::number("len", len),
            output,
        ];
        // Wrapping, as sums on the CPU are.
        let wide = match x.dtype {
            DType::I64 => "u64",
            DType::F64 => "double",
            _ => "float",
        };
        let body = format!(
            "    sum_of_ranks<{ranks}, {keeps_all}, {wide}>(x, terms, rank, part, within, slot, whole, len, y);\n"
        );
        self.launch([run.len.div_ceil(THREADS as usize), 1, 1], THREADS, parameters, body);
    }
}
