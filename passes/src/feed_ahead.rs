//! Room in the arena where large inputs of the next step wait while a step runs.
//!
//! An input's home is used for other tensors once the step has read it, so that the next batch comes to a device
//! only after the step has ended: 154 MB of images take some 3 ms of a GPU's PCIe. Here it gets bytes of its own
//! above all others, where it is put meanwhile and from where it is copied home, a thirtieth of that time. Sound because nothing
//! else uses these bytes, which the checker holds.
//!
//! Under a byte limit the step is planned with this room left free, and without it where that may be faster
//! ([`crate::limit`]). It is for a step that takes turns with no other: what the next step is
//! is known then. It is for GPUs: a CPU's inputs are where they are. This is the prefetching of data loaders, in the same
//! arena.

use crate::{Cx, PassError, ProgramPass, Stats, Turns};
use arenic_ir::cost::{Device, Direction};
use arenic_ir::graph::{Def, Graph, ValueId};
use arenic_ir::plan::{Fact, Plan};
use arenic_ir::program::{Home, Program, Range, Space};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Lets large inputs of the next step be fed while a step runs.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FeedAhead {
    /// Bytes of an input from which on it is worth its room.
    pub least_bytes: u64,
}

impl Default for FeedAhead {
    fn default() -> Self {
        FeedAhead { least_bytes: 1 << 20 }
    }
}

impl FeedAhead {
    /// Bytes of an input, if it is one that is worth its room.
    fn bytes(&self, g: &Graph, v: ValueId) -> Option<u64> {
        let is_input = matches!(g.values[v].def, Def::Input);
        Some(g.values[v].ty.bytes()).filter(|&bytes| is_input && bytes >= self.least_bytes)
    }
}

impl ProgramPass for FeedAhead {
    fn needs(&self) -> &[Fact] {
        &[Fact::Placement]
    }

    fn run(&self, g: &Graph, _: &Plan, program: &mut Program, cx: &Cx) -> Result<Stats, PassError> {
        let none = Stats::from([("inputs", 0), ("bytes", 0)]);
        if cx.turns != Turns::Alone {
            return Ok(none);
        }
        let is_large = |home: &&Home| self.bytes(g, home.value).is_some();
        let (align, below) = (program.target.align, program.sizes.device);
        let mut top = below;
        let mut ahead = Vec::new();
        for home in program.homes.iter().filter(is_large) {
            let offset = top.next_multiple_of(align);
            let range = Range { space: Space::Device, offset, len: home.range.len };
            ahead.push(Home { value: home.value, range });
            top = range.end().next_multiple_of(align);
        }
        if ahead.is_empty() || cx.limits.device.is_some_and(|limit| top > limit) {
            return Ok(none);
        }
        let inputs = ahead.len() as u64;
        (program.ahead, program.sizes.device) = (ahead, top);
        Ok(Stats::from([("inputs", inputs), ("bytes", top - below)]))
    }

    fn room(&self, g: &Graph, cx: &Cx) -> u64 {
        let large = g.values.keys().filter_map(|v| self.bytes(g, v));
        match cx.turns {
            Turns::Alone => large.map(|bytes| bytes.next_multiple_of(cx.target.align)).sum(),
            _ => 0,
        }
    }

    fn missed_seconds(&self, g: &Graph, program: &Program, device: &Device, cx: &Cx) -> f64 {
        if cx.turns != Turns::Alone || !program.ahead.is_empty() {
            return 0.0;
        }
        let large = program.homes.iter().filter_map(|home| self.bytes(g, home.value));
        large.map(|bytes| device.copy_seconds(Direction::ToDevice, bytes)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arenic_backends::CUDA;
    use arenic_ir::program::PerSpace;
    use arenic_ir::text::Module;
    use arenic_programs::steps;

    /// A step waits for inputs that have no room; so do others of several programs, whatever the room.
    #[test]
    fn inputs_without_room_are_waited_for() {
        let text = "graph \"g\" {\n  input v0: f32[64] \"x\"\n  input v1: f32[] \"y\"\n  \
                    n0 binary {\"f\":\"add\"} (v0, v1) -> (v2: f32[64] \"z\")\n  output \"z\" v2\n}\n\
                    program {\n  align 256\n  device 512\n  host 0\n  home v0 device[0+256]\n  \
                    home v1 device[256+4]\n  \
                    run n0 stream0 (device[0+256], device[256+4]) -> (device[0+256])\n  \
                    output device[0+256]\n}\n";
        let module = Module::parse(text, &arenic_backends::ALL).unwrap();
        let (g, device) = (&module.graph, &steps::device(1.0));
        let pass = FeedAhead { least_bytes: 16 };
        let seconds = |limit, turns| {
            let mut program = module.program.clone().unwrap();
            let limits = PerSpace { device: Some(limit), ..PerSpace::default() };
            let cx = Cx { limits, turns, ..Cx::new(CUDA.target()) };
            pass.run(g, &Plan::default(), &mut program, &cx).unwrap();
            (program.sizes.device, pass.missed_seconds(g, &program, device, &cx))
        };
        let room = pass.room(g, &Cx::new(CUDA.target()));
        assert_eq!(room, 256);
        assert_eq!(seconds(512 + room, Turns::Alone), (768, 0.0));
        assert_eq!(seconds(512 + room - 1, Turns::Alone), (512, 256.0));
        assert_eq!(seconds(512 + room, Turns::OfRounds), (512, 0.0));
    }
}
