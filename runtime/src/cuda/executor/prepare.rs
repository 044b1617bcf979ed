//! From a program's commands to what is issued, with every address.

use super::super::choose::Chooser;
use super::super::driver::{
    CallHandle, Direction, Driver, DriverError, EventHandle, FunctionHandle, ModuleHandle, Rank,
    StreamHandle, Transfer,
};
use super::super::lower::lower;
use super::super::module::{Argument, KernelId, Launch, Module};
use super::super::work::{Asked, Message, Place, Unsupported, Work};
use super::staged::{ALIGN, Staged};
use arenic_ir::graph::{Graph, NodeId};
use arenic_ir::program::{Command, EventId, PerSpace, Program, Range, StreamId};
use cranelift_entity::EntityRef;
use std::collections::{BTreeMap, HashMap};

/// A command with its addresses.
pub(super) enum Prepared {
    Launch { stream: usize, launch: PreparedLaunch },
    Call { stream: usize, call: CallHandle, addresses: Vec<u64>, workspace: u64 },
    Copy { stream: usize, from: u64, to: u64, bytes: u64 },
    Exchange { stream: usize, transfers: Vec<Transfer> },
    Record { stream: usize, event: EventHandle },
    Wait { stream: usize, event: EventHandle },
}

/// A launch with its addresses.
pub(super) struct PreparedLaunch {
    function: FunctionHandle,
    grid: [u32; 3],
    threads: u32,
    words: Vec<u64>,
}

impl PreparedLaunch {
    /// # Safety
    /// As for [`Driver::launch`].
    unsafe fn issue(&self, driver: &impl Driver, on: StreamHandle) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        unsafe { driver.launch(on, self.function, self.grid, self.threads, &self.words) }
    }
}

impl Prepared {
    fn stream(&self) -> usize {
        match *self {
            Prepared::Launch { stream, .. }
            | Prepared::Call { stream, .. }
            | Prepared::Copy { stream, .. }
            | Prepared::Exchange { stream, .. }
            | Prepared::Record { stream, .. }
            | Prepared::Wait { stream, .. } => stream,
        }
    }

    /// Issues the command on its stream.
    ///
    /// # Safety
    /// Its addresses are valid when the stream comes to it.
    pub(super) unsafe fn issue(
        &self,
        driver: &impl Driver,
        streams: &[StreamHandle],
    ) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        unsafe { self.issue_on(driver, streams[self.stream()]) }
    }

    /// # Safety
    /// As for [`Prepared::issue`].
    unsafe fn issue_on(&self, driver: &impl Driver, on: StreamHandle) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Prepared::Launch { launch, .. } => launch.issue(driver, on),
                Prepared::Call { call, addresses, workspace, .. } => {
                    driver.call(on, *call, addresses, *workspace)
                }
                Prepared::Copy { from, to, bytes, .. } => driver.copy(on, *from, *to, *bytes),
                Prepared::Exchange { transfers, .. } => driver.exchange(on, transfers),
                Prepared::Record { event, .. } => driver.record(on, *event),
                Prepared::Wait { event, .. } => driver.wait(on, *event),
            }
        }
    }
}

/// The text of a program's kernels; the same for the same program.
///
/// # Errors
/// The backend has no kernel for an operator.
pub fn source(graph: &Graph, program: &Program) -> Result<String, Unsupported> {
    Ok(lower_all(graph, program)?.0.source())
}

/// The kernels of a program, and what each of its nodes does.
pub(super) fn lower_all(
    g: &Graph,
    program: &Program,
) -> Result<(Module, HashMap<NodeId, Vec<Work>>), Unsupported> {
    // A node that runs again may read other places.
    let mut alignments: BTreeMap<NodeId, Vec<u64>> = BTreeMap::new();
    for command in &program.commands {
        if let Command::Run { node, reads, .. } = command {
            let all = alignments.entry(*node).or_insert_with(|| vec![ALIGN; reads.len()]);
            for (align, read) in all.iter_mut().zip(reads) {
                *align = (*align).min(1 << read.offset.trailing_zeros().min(62));
            }
        }
    }
    let mut module = Module::default();
    let mut work = HashMap::new();
    for (n, alignments) in alignments {
        let node = &g.nodes[n];
        let outputs: Vec<_> = node.outputs.iter().map(|v| v.map(|v| g.ty(v))).collect();
        let inputs = g.input_types(n);
        let target = program.target;
        work.insert(n, lower(&node.op, &inputs, &alignments, &outputs, target, &mut module)?);
    }
    Ok((module, work))
}

/// What a rank sends of messages, and receives.
fn transfers(
    messages: &[Message],
    Rank { rank, ranks, .. }: Rank,
    word: &impl Fn(&Argument) -> u64,
) -> Vec<Transfer> {
    let mut transfers = Vec::new();
    for peer in (0..ranks).filter(|&peer| peer != rank) {
        for message in messages {
            let mut add = |direction, place: &Place, sender, receiver| {
                let bytes = message.len(sender, receiver);
                let address = word(&place.of) + place.offset(sender, receiver);
                if bytes > 0 {
                    transfers.push(Transfer { peer, direction, address, bytes });
                }
            };
            add(Direction::Sent, &message.from, rank, peer);
            add(Direction::Received, &message.to, peer, rank);
        }
    }
    transfers
}

/// Turns commands into what is issued.
pub(super) struct Prepare<'a, D> {
    pub(super) driver: &'a D,
    pub(super) module: Option<ModuleHandle>,
    pub(super) arenas: &'a PerSpace<u64>,
    pub(super) staged: &'a Staged,
    pub(super) streams: &'a HashMap<StreamId, usize>,
    pub(super) rank: Rank,
    /// The first stream, on which nothing is under way.
    pub(super) first: StreamHandle,
    pub(super) chooser: Chooser<'a, D>,
    pub(super) events: HashMap<EventId, EventHandle>,
    pub(super) functions: HashMap<KernelId, FunctionHandle>,
}

impl<D: Driver> Prepare<'_, D> {
    fn address(&self, range: &Range) -> u64 {
        self.arenas[range.space] + range.offset
    }

    fn event(&mut self, event: EventId) -> Result<EventHandle, DriverError> {
        if let Some(&known) = self.events.get(&event) {
            return Ok(known);
        }
        let new = self.driver.event()?;
        self.events.insert(event, new);
        Ok(new)
    }

    fn launch(
        &mut self,
        launch: &Launch,
        word: impl Fn(&Argument) -> u64,
    ) -> Result<PreparedLaunch, DriverError> {
        let function = match self.functions.get(&launch.kernel) {
            Some(&known) => known,
            None => {
                let Some(module) = self.module else { unreachable!("a launch is of a module") };
                let new = self.driver.function(module, &launch.kernel.to_string())?;
                self.functions.insert(launch.kernel, new);
                new
            }
        };
        let words = launch.arguments.iter().map(word).collect();
        Ok(PreparedLaunch { function, grid: launch.grid, threads: launch.threads, words })
    }

    /// What an operator does on a stream; `word` is what is passed for an argument.
    fn works(
        &mut self,
        works: &[Work],
        stream: usize,
        word: &impl Fn(&Argument) -> u64,
        prepared: &mut Vec<Prepared>,
    ) -> Result<(), DriverError> {
        for work in works {
            match work {
                Work::Launch(launch) => {
                    let launch = self.launch(launch, word)?;
                    prepared.push(Prepared::Launch { stream, launch });
                }
                Work::Copy { from, to, bytes } => {
                    let (from, to, bytes) = (word(from), word(to), *bytes);
                    if from != to && bytes > 0 {
                        prepared.push(Prepared::Copy { stream, from, to, bytes });
                    }
                }
                Work::Exchange { messages, with_itself } => {
                    if *with_itself {
                        let Rank { rank, .. } = self.rank;
                        prepared.extend(messages.iter().filter_map(|message| {
                            let bytes = message.len(rank, rank);
                            let from = word(&message.from.of) + message.from.offset(rank, rank);
                            let to = word(&message.to.of) + message.to.offset(rank, rank);
                            (bytes > 0 && from != to).then_some(Prepared::Copy {
                                stream,
                                from,
                                to,
                                bytes,
                            })
                        }));
                    }
                    let transfers = transfers(messages, self.rank, word);
                    if !transfers.is_empty() {
                        prepared.push(Prepared::Exchange { stream, transfers });
                    }
                }
                Work::Library(asked) => {
                    let Asked { request, arguments, before, after, instead } = &**asked;
                    let addresses: Vec<u64> = arguments.iter().map(word).collect();
                    let workspace = word(&Argument::Scratch(0));
                    let mut others = Vec::new();
                    if self.chooser.measures() {
                        self.works(instead, stream, word, &mut others)?;
                    }
                    let (driver, first) = (self.driver, self.first);
                    // SAFETY: ranges of the arena (`check`), aligned as `lower_all` found.
                    let call = unsafe {
                        self.chooser.choose(request, &addresses, workspace, &mut || {
                            others.iter().try_for_each(|other| other.issue_on(driver, first))
                        })
                    }?;
                    match call {
                        Some(call) => {
                            self.works(before, stream, word, prepared)?;
                            prepared.push(Prepared::Call { stream, call, addresses, workspace });
                            self.works(after, stream, word, prepared)?;
                        }
                        None if self.chooser.measures() => prepared.append(&mut others),
                        None => self.works(instead, stream, word, prepared)?,
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn command(
        &mut self,
        command: &Command,
        work: &HashMap<NodeId, Vec<Work>>,
        prepared: &mut Vec<Prepared>,
    ) -> Result<(), DriverError> {
        let stream = self.streams[&command.stream()];
        match command {
            Command::Run { node, reads, writes, scratch, .. } => {
                let (arenas, staged, Rank { rank, .. }) = (self.arenas, self.staged, self.rank);
                let address = |range: &Range| arenas[range.space] + range.offset;
                let word = |argument: &Argument| match *argument {
                    Argument::Input(i) => address(&reads[i]),
                    Argument::Output(o) => writes[o].as_ref().map_or(0, address),
                    Argument::Scratch(at) => scratch.as_ref().map_or(0, address) + at,
                    Argument::Draw => staged.draw,
                    Argument::Refusal => staged.refusal,
                    Argument::Node => node.index() as u64,
                    Argument::Rank => rank as u64,
                    Argument::Number(number) => number,
                };
                self.works(&work[node], stream, &word, prepared)?;
            }
            Command::Copy { from, to, .. } => {
                let bytes = from.len;
                let (from, to) = (self.address(from), self.address(to));
                if bytes > 0 {
                    prepared.push(Prepared::Copy { stream, from, to, bytes });
                }
            }
            Command::Record { event, .. } => {
                let event = self.event(*event)?;
                prepared.push(Prepared::Record { stream, event });
            }
            Command::Wait { event, .. } => {
                let event = self.event(*event)?;
                prepared.push(Prepared::Wait { stream, event });
            }
        }
        Ok(())
    }
}
