//! A discrete-event simulation of a program: when each command runs on a device.
//!
//! Commands of one stream run one after another, as events allow. Kernels of all streams
//! take turns on the arithmetic units, in issue order where several are ready: the
//! roofline gives each the whole device. A copy takes the engine of its direction (the
//! one engine, where there is only one) and has the link's rate for that direction, or
//! its rate both ways while the other direction is busy too. Kernels are slower beside copies, and
//! where they wait for one, by what the device's description says. The host issues in time.
//!
//! At the end of a step all streams have joined, so steps are alike, and one step is the
//! steady state.

mod counts;
mod coverage;
mod trace;

use crate::cluster::Cluster;
use arenic_ir::Graph;
use arenic_ir::check::{Footprint, OccupancyKind};
use arenic_ir::cost::{Device, Direction};
use arenic_ir::graph::NodeId;
use arenic_ir::program::{Command, EventId, Program, Space, Span, StreamId};
pub use counts::Counts;
use coverage::Coverage;
use cranelift_entity::EntityRef;
use std::collections::{HashMap, VecDeque};
pub use trace::chrome_trace;

/// Seconds in which no kernel runs, by what the next one waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stalls {
    /// A value that is being copied to the device.
    pub copies_in: f64,
    /// Bytes that are being copied to the host.
    pub copies_out: f64,
    /// An exchange with other ranks.
    pub exchanges: f64,
    /// The step's end: copies and exchanges that are still running after the last kernel.
    pub boundary: f64,
}

impl Stalls {
    /// All of them.
    pub fn total(&self) -> f64 {
        self.copies_in + self.copies_out + self.exchanges + self.boundary
    }
}

/// What a direction of the link carries in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Bytes copied.
    pub bytes: u64,
    /// Seconds in which a copy runs.
    pub seconds: f64,
}

/// One step on a device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Simulation {
    /// From the step's beginning to its end.
    pub seconds: f64,
    /// Seconds in which a kernel runs.
    pub kernel_seconds: f64,
    /// Seconds in which none does.
    pub stalls: Stalls,
    /// From the device to the host.
    pub to_host: Traffic,
    /// From the host to the device.
    pub to_device: Traffic,
    /// Seconds in which the rank exchanges tensors with others.
    pub exchange_seconds: f64,
    /// When each command runs; records and waits take no time.
    pub commands: Vec<Span>,
}

/// Seconds of each node's kernel.
pub type KernelSeconds<'a> = dyn Fn(NodeId) -> f64 + 'a;

/// Seconds of each node on the device, as measured or else by its roofline; zero for a node
/// whose operands do not fit it, which no verified graph has.
pub fn roofline(g: &Graph, device: &Device) -> impl Fn(NodeId) -> f64 {
    let seconds: Vec<f64> =
        g.nodes.keys().map(|n| device.node_seconds(g, n).unwrap_or(0.0)).collect();
    move |n| seconds[n.index()]
}

/// Simulates one step of a graph's checked program: kernels by their rooflines, and exchanges with other ranks
/// over the links that the device's description has.
pub fn simulate_step(g: &Graph, p: &Program, device: &Device) -> Simulation {
    let (wires, ranks) = (Cluster::of_device(device), g.rank_count());
    simulate_ranks(p, device, &roofline(g, device), &|n| wires.node_seconds(g, n, ranks))
}

/// Seconds of each node's exchange with other ranks, which takes none of the arithmetic units; `None` for kernels.
pub type ExchangeSeconds<'a> = dyn Fn(NodeId) -> Option<f64> + 'a;

/// Simulates one step of a checked program of one rank.
pub fn simulate(p: &Program, device: &Device, kernel: &KernelSeconds) -> Simulation {
    simulate_ranks(p, device, kernel, &|_| None)
}

/// Simulates one step of a rank, whose exchanges with others run beside its kernels.
pub fn simulate_ranks(
    p: &Program,
    device: &Device,
    kernel: &KernelSeconds,
    exchange: &ExchangeSeconds,
) -> Simulation {
    let mut machine = Machine::new(p, device, kernel, exchange);
    while machine.start_what_can() {
        machine.advance();
    }
    machine.result()
}

/// Bytes in use over time: (second, bytes from then on), for one space. Bytes that one value takes
/// over from another are in use once.
pub fn live_over_time(
    footprint: &Footprint,
    align: u64,
    simulation: &Simulation,
    space: Space,
) -> Vec<(f64, u64)> {
    let time = |command: usize| simulation.commands.get(command).copied().unwrap_or_default();
    let mut changes: Vec<(f64, bool, std::ops::Range<u64>)> = Vec::new();
    for o in footprint.occupancies.iter().filter(|o| o.range.space == space) {
        let homed = matches!(o.kind, OccupancyKind::State | OccupancyKind::Const);
        let start = if homed || o.first == 0 { 0.0 } else { time(o.first).start };
        let end = match o.end.checked_sub(1) {
            _ if homed => simulation.seconds,
            Some(last) => time(last).end,
            None => start,
        };
        let first = o.range.offset / align * align;
        let bytes = first..(o.range.offset + o.range.len).next_multiple_of(align);
        changes.extend([(start, true, bytes.clone()), (end.max(start), false, bytes)]);
    }
    // What ends goes before what begins at the same time.
    changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut used = Coverage::new(changes.iter().map(|c| c.2.clone()));
    let mut curve: Vec<(f64, u64)> = Vec::new();
    for (second, begins, bytes) in changes {
        used.change(&bytes, if begins { 1 } else { -1 });
        match curve.last_mut() {
            Some(last) if last.0 == second => last.1 = used.bytes(),
            _ => curve.push((second, used.bytes())),
        }
    }
    curve
}

/// What runs a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    Kernels,
    Link(Direction),
    /// The links to other ranks.
    Ranks,
}

/// A command that is running.
struct Running {
    command: usize,
    stream: usize,
    /// Seconds left of a kernel (or of a copy's latency), then bytes left of a copy.
    seconds: f64,
    bytes: f64,
}

struct Machine<'a> {
    p: &'a Program,
    device: &'a Device,
    kernel: &'a KernelSeconds<'a>,
    exchange: &'a ExchangeSeconds<'a>,
    now: f64,
    queues: Vec<VecDeque<usize>>,
    busy: Vec<bool>,
    /// The last command of each stream that took time.
    latest: Vec<Option<usize>>,
    /// For each stream, the command that its last wait in vain was for.
    awaited: Vec<Option<usize>>,
    /// For each stream, copies that were waited for since its last command.
    joined: Vec<u32>,
    /// Events that have happened, with the last command before them.
    events: HashMap<EventId, Option<usize>>,
    running: [Option<Running>; 4],
    last_kernel_end: f64,
    found: Simulation,
}

/// Places in `running`.
const KERNELS: usize = 0;
const TO_HOST: usize = 1;
const TO_DEVICE: usize = 2;
const RANKS: usize = 3;

impl<'a> Machine<'a> {
    fn new(
        p: &'a Program,
        device: &'a Device,
        kernel: &'a KernelSeconds<'a>,
        exchange: &'a ExchangeSeconds<'a>,
    ) -> Self {
        let mut ids: Vec<StreamId> = p.commands.iter().map(Command::stream).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut queues = vec![VecDeque::new(); ids.len()];
        for (i, command) in p.commands.iter().enumerate() {
            queues[ids.partition_point(|&id| id < command.stream())].push_back(i);
        }
        Machine {
            p,
            device,
            kernel,
            exchange,
            now: 0.0,
            busy: vec![false; ids.len()],
            latest: vec![None; ids.len()],
            awaited: vec![None; ids.len()],
            joined: vec![0; ids.len()],
            queues,
            events: HashMap::new(),
            running: [None, None, None, None],
            last_kernel_end: 0.0,
            found: Simulation {
                commands: vec![Span::default(); p.commands.len()],
                ..Default::default()
            },
        }
    }

    fn engine(&self, command: usize) -> Engine {
        match &self.p.commands[command] {
            Command::Copy { from, to, .. } => match (from.space, to.space) {
                (Space::Device, Space::Host) => Engine::Link(Direction::ToHost),
                (Space::Host, Space::Device) => Engine::Link(Direction::ToDevice),
                _ => Engine::Kernels,
            },
            Command::Run { node, .. } if (self.exchange)(*node).is_some() => Engine::Ranks,
            _ => Engine::Kernels,
        }
    }

    /// Lets records and waits pass and starts commands whose engines are free; false when
    /// nothing runs any more.
    fn start_what_can(&mut self) -> bool {
        let mut moved = true;
        while moved {
            moved = false;
            for s in 0..self.queues.len() {
                moved |= self.pass_events(s);
            }
            // Of commands that want one engine the one issued first.
            let mut ready: Vec<(usize, usize)> = (0..self.queues.len())
                .filter(|&s| !self.busy[s])
                .filter_map(|s| Some((*self.queues[s].front()?, s)))
                .filter(|&(c, _)| !matches!(self.p.commands[c], Command::Wait { .. }))
                .collect();
            ready.sort_unstable();
            for (command, stream) in ready {
                moved |= self.start(command, stream);
            }
        }
        self.running.iter().any(Option::is_some)
    }

    /// Records and waits at the head of an idle stream.
    fn pass_events(&mut self, s: usize) -> bool {
        let mut moved = false;
        while let (false, Some(&c)) = (self.busy[s], self.queues[s].front()) {
            match &self.p.commands[c] {
                Command::Record { event, .. } => {
                    self.events.insert(*event, self.latest[s]);
                }
                Command::Wait { event, .. } => match self.events.get(event) {
                    Some(&after) => {
                        let end = |c: usize| self.found.commands[c].end;
                        if after.is_some_and(|a| end(a) >= self.now) {
                            self.awaited[s] = after;
                        }
                        let is_copy = |a| matches!(self.engine(a), Engine::Link(_));
                        self.joined[s] += u32::from(after.is_some_and(is_copy));
                    }
                    None => return moved,
                },
                Command::Run { .. } | Command::Copy { .. } => return moved,
            }
            self.found.commands[c] = Span { start: self.now, end: self.now };
            self.queues[s].pop_front();
            moved = true;
        }
        moved
    }

    fn start(&mut self, command: usize, stream: usize) -> bool {
        let engine = self.engine(command);
        let single = self.device.link.copy_engines == 1;
        let link_busy = self.running[TO_HOST].is_some() || self.running[TO_DEVICE].is_some();
        let place = match engine {
            Engine::Kernels => KERNELS,
            Engine::Link(_) if single && link_busy => return false,
            Engine::Link(Direction::ToHost) => TO_HOST,
            Engine::Link(Direction::ToDevice) => TO_DEVICE,
            Engine::Ranks => RANKS,
        };
        if self.running[place].is_some() {
            return false;
        }
        let (mut seconds, bytes) = match (&self.p.commands[command], engine) {
            (Command::Run { node, .. }, _) => {
                let exchange = (self.exchange)(*node);
                (exchange.unwrap_or_else(|| (self.kernel)(*node)), 0.0)
            }
            (Command::Copy { from, .. }, Engine::Link(_)) => {
                (self.device.link.latency_seconds, from.len as f64)
            }
            (Command::Copy { from, .. }, _) => (self.copy_within(from.len), 0.0),
            _ => return false,
        };
        if place == KERNELS {
            self.note_stall(stream);
            let joined = f64::from(self.joined[stream]);
            seconds += joined * self.device.link.beside_kernels.join_seconds;
        }
        self.joined[stream] = 0;
        self.awaited[stream] = None;
        self.found.commands[command].start = self.now;
        self.running[place] = Some(Running { command, stream, seconds, bytes });
        self.busy[stream] = true;
        self.queues[stream].pop_front();
        true
    }

    /// Seconds of a copy within the device's memory.
    fn copy_within(&self, bytes: u64) -> f64 {
        let memory = &self.device.memory;
        let rate = memory.bytes_per_second * memory.efficiency;
        self.device.launch_seconds + 2.0 * bytes as f64 / rate
    }

    /// No kernel ran until now: what was the next one's stream waiting for?
    fn note_stall(&mut self, stream: usize) {
        let idle = self.now - self.last_kernel_end;
        if idle <= 0.0 {
            return;
        }
        match self.awaited[stream].map(|c| self.engine(c)) {
            Some(Engine::Link(Direction::ToHost)) => self.found.stalls.copies_out += idle,
            Some(Engine::Ranks) => self.found.stalls.exchanges += idle,
            _ => self.found.stalls.copies_in += idle,
        }
    }

    /// Seconds of its own that a command gets through in a second.
    fn pace(&self, place: usize) -> f64 {
        let copies = [TO_HOST, TO_DEVICE].into_iter().filter(|&way| self.running[way].is_some());
        match place {
            KERNELS => (1.0 - self.device.link.beside_kernels.drag).powi(copies.count() as i32),
            _ => 1.0,
        }
    }

    /// Bytes per second of a direction, as busy as the link is.
    fn rate(&self, place: usize) -> f64 {
        let link = &self.device.link;
        let both = self.running[TO_HOST].is_some() && self.running[TO_DEVICE].is_some();
        match place {
            TO_HOST | TO_DEVICE if both => link.rate_both_ways(),
            TO_HOST => link.rate(Direction::ToHost),
            TO_DEVICE => link.rate(Direction::ToDevice),
            // Exchanges are seconds alone.
            _ => 1.0,
        }
    }

    /// Goes on to the next completion.
    fn advance(&mut self) {
        let left = |(place, r): (usize, &Option<Running>)| {
            let r = r.as_ref()?;
            Some(r.seconds / self.pace(place) + r.bytes / self.rate(place))
        };
        let next = self.running.iter().enumerate().filter_map(left).fold(f64::INFINITY, f64::min);
        let rates = [0, 1, 2, 3].map(|place| self.rate(place));
        let paces = [0, 1, 2, 3].map(|place| self.pace(place));
        self.now += next;
        for (place, entry) in self.running.iter_mut().enumerate() {
            let Some(r) = entry else { continue };
            match place {
                KERNELS => self.found.kernel_seconds += next,
                TO_HOST => self.found.to_host.seconds += next,
                TO_DEVICE => self.found.to_device.seconds += next,
                _ => self.found.exchange_seconds += next,
            }
            let total = r.seconds / paces[place] + r.bytes / rates[place];
            if total <= next {
                let bytes = match &self.p.commands[r.command] {
                    Command::Copy { from, .. } => from.len,
                    _ => 0,
                };
                match place {
                    KERNELS => self.last_kernel_end = self.now,
                    TO_HOST => self.found.to_host.bytes += bytes,
                    TO_DEVICE => self.found.to_device.bytes += bytes,
                    _ => {}
                }
                self.found.commands[r.command].end = self.now;
                self.busy[r.stream] = false;
                self.latest[r.stream] = Some(r.command);
                *entry = None;
                continue;
            }
            let latency = (r.seconds / paces[place]).min(next);
            r.seconds -= latency * paces[place];
            r.bytes = (r.bytes - (next - latency) * rates[place]).max(0.0);
        }
    }

    fn result(mut self) -> Simulation {
        self.found.seconds = self.now;
        self.found.stalls.boundary = self.now - self.last_kernel_end;
        self.found
    }
}

#[cfg(test)]
mod tests;
