//! What a step comes to, counted without a device: operators, bytes and arithmetic by who does it.

use arenic_ir::Graph;
use arenic_ir::backend::Unit;
use arenic_ir::op::WorkKind;
use arenic_ir::program::{Command, Program, Space};
use std::collections::BTreeMap;

/// Counts of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operators that run; repeated ones each time. Each is one kernel, or a few.
    pub operators: u64,
    /// Bytes that they read and write in the device's memory, each operand and result once, and what is
    /// copied within it twice. Kernels that read an operand again move more.
    pub moved_bytes: u64,
    /// Floating-point operations of products, convolutions and attentions, by who does them.
    pub product_flops: BTreeMap<Unit, u64>,
    /// Those of everything else.
    pub other_flops: u64,
    /// The most operations of one product that the backend's own kernels do without tensor cores.
    pub largest_by_lanes: u64,
}

impl Counts {
    /// Those of a program.
    pub fn of(g: &Graph, p: &Program) -> Counts {
        let mut counts = Counts::default();
        for command in &p.commands {
            match command {
                Command::Run { node, .. } => counts.add(g, *node, p),
                Command::Copy { from, to, .. }
                    if from.space == Space::Device && to.space == Space::Device =>
                {
                    counts.moved_bytes = counts.moved_bytes.saturating_add(2 * from.len);
                }
                Command::Copy { .. } | Command::Record { .. } | Command::Wait { .. } => {}
            }
        }
        counts
    }

    fn add(&mut self, g: &Graph, n: arenic_ir::graph::NodeId, p: &Program) {
        let node = &g.nodes[n];
        let x = g.input_types(n);
        let results = g.output_types(n).unwrap_or_default();
        let is_read = |(ty, v)| Option::is_some(v).then_some(ty);
        let y: Vec<_> = results.iter().zip(&node.outputs).map_while(is_read).collect();
        let work = g.work(n);
        self.operators += 1;
        self.moved_bytes = self.moved_bytes.saturating_add(work.bytes);
        if work.kind == WorkKind::Elementwise {
            self.other_flops = self.other_flops.saturating_add(work.flops);
            return;
        }
        let unit = node.op.unit(p.target, &x, &y);
        let sum = self.product_flops.entry(unit).or_default();
        *sum = sum.saturating_add(work.flops);
        if unit == Unit::Lanes {
            self.largest_by_lanes = self.largest_by_lanes.max(work.flops);
        }
    }

    /// Adds a step that runs so many times.
    pub fn add_times(&mut self, other: &Counts, times: u64) {
        let add = |to: &mut u64, more: u64| *to = to.saturating_add(more.saturating_mul(times));
        add(&mut self.operators, other.operators);
        add(&mut self.moved_bytes, other.moved_bytes);
        add(&mut self.other_flops, other.other_flops);
        for (&unit, &flops) in &other.product_flops {
            add(self.product_flops.entry(unit).or_default(), flops);
        }
        self.largest_by_lanes = self.largest_by_lanes.max(other.largest_by_lanes);
    }

    /// Operations of products that a unit does.
    pub fn products_by(&self, unit: Unit) -> u64 {
        self.product_flops.get(&unit).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arenic_backends::{CPU, CUDA};
    use arenic_ir::TargetInfo;
    use arenic_ir::text::Module;

    const TEXT: &str = "graph \"two products and a sum\" {
  input v0: f32[64,32] \"x\"
  input v1: f32[32,64] \"w\"
  input v2: f32[2,2] \"small\"
  n0 mat_mul (v0, v1) -> (v3: f32[64,64])
  n1 mat_mul (v2, v2) -> (v4: f32[2,2])
  n2 binary {\"f\":\"add\"} (v3, v3) -> (v5: f32[64,64])
  output \"y\" v5
  output \"z\" v4
}
";

    fn counted(target: TargetInfo) -> Counts {
        let module = Module::parse(TEXT, &arenic_backends::ALL).unwrap();
        let cx = crate::Cx::new(target);
        let yaml = "- order\n- share_in_place\n- place\n- lower\n- sync\n";
        let pipeline = crate::pipeline::Pipeline::parse(yaml, &crate::Standard).unwrap();
        let outcome = pipeline.run_on(module, &cx, Default::default()).unwrap();
        let program = outcome.module.program.as_ref().unwrap();
        Counts::of(&outcome.module.graph, program)
    }

    #[test]
    fn arithmetic_goes_to_who_does_it() {
        let (large, small) = (2 * 64 * 64 * 32, 2 * 2 * 2 * 2);
        let cuda = counted(CUDA.target());
        assert_eq!(cuda.products_by(Unit::Library), large);
        assert_eq!((cuda.products_by(Unit::Lanes), cuda.largest_by_lanes), (small, small));
        let cpu = counted(CPU.target());
        assert_eq!((cpu.products_by(Unit::Lanes), cpu.largest_by_lanes), (large + small, large));
        for counts in [&cuda, &cpu] {
            assert_eq!((counts.operators, counts.other_flops), (3, 64 * 64));
            let products = 4 * (2 * 64 * 32 + 64 * 64) + 4 * 3 * 4;
            assert_eq!(counts.moved_bytes, products + 4 * 3 * 64 * 64);
        }
        let mut twice = Counts::default();
        twice.add_times(&cuda, 2);
        assert_eq!((twice.operators, twice.largest_by_lanes), (6, small));
        assert_eq!(twice.products_by(Unit::Library), 2 * large);
    }
}
