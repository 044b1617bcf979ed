//! Clusters: how long exchanges between ranks take.
//!
//! A message of n bytes takes α + n·β (Hockney's model). Exchanges are hierarchical: each node adds up, or puts together,
//! what its own ranks have, each of which then exchanges its share with the ranks of its place in other nodes. Among p ranks a
//! reduce-scatter or an all-gather of n bytes in all takes, by a ring, (p − 1)·α + (p − 1)/p·n·β, and by recursive
//! halving or doubling, which is a tree, ⌈log₂ p⌉·α + (p − 1)/p·n·β where p is a power of two and twice the
//! latency elsewhere; the faster one is taken. An all-reduce is the fastest of
//!
//! - one of each, which moves as few bytes as any can: 2·(p − 1)/p·n of each rank;
//! - of few bytes, recursive doubling of the whole: ⌈log₂ p⌉·(α + n·β);
//! - two binary trees, each with half of the bytes, in which a rank that has children in one has none in the other: up and
//!   down, in pieces so small that all levels are busy, 2·⌈log₂ p⌉·α + 2·n·β, whatever p is.
//!
//! From Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH" (IJHPCA 19,
//! 2005), sections 4.1 to 4.5; Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (JPDC 69,
//! 2009), for the ring and the least bytes; Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast,
//! reduction and scan" (Parallel Computing 35, 2009), whose trees NCCL has between nodes since 2.4.

use crate::yaml::{self, YamlError};
use arenic_ir::cost::{Device, Links, Wire};
use arenic_ir::graph::{Graph, NodeId};
use arenic_ir::op::{MAX_RANKS, Op};
use serde::{Deserialize, Serialize};

/// The named clusters: name and YAML.
pub const NAMED: &[(&str, &str)] = &[
    ("dgx_a100", include_str!("../clusters/dgx_a100.yaml")),
    ("dgx_h100", include_str!("../clusters/dgx_h100.yaml")),
    ("pcie_ethernet", include_str!("../clusters/pcie_ethernet.yaml")),
];

/// A cluster of equal nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// What it is called.
    pub name: String,
    /// How many ranks a node has.
    pub ranks_per_node: usize,
    /// Between ranks of a node.
    pub within: Wire,
    /// Between ranks of different nodes, for each rank.
    pub between: Wire,
}

/// Reads a cluster's description.
///
/// # Errors
/// YAML errors, unknown and missing fields with line and column; figures that no cluster has.
pub fn parse(text: &str) -> Result<Cluster, YamlError> {
    let cluster: Cluster = yaml::read(text)?;
    if cluster.ranks_per_node == 0 {
        return Err("ranks_per_node must be at least 1".to_owned().into());
    }
    for (name, wire) in [("within", cluster.within), ("between", cluster.between)] {
        let Wire { latency_seconds, bytes_per_second } = wire;
        if !(latency_seconds >= 0.0 && latency_seconds.is_finite()) {
            return Err(format!("{name}.latency_seconds must be a number from 0 on").into());
        }
        if !(bytes_per_second > 0.0 && bytes_per_second.is_finite()) {
            return Err(format!("{name}.bytes_per_second must be a positive number").into());
        }
    }
    Ok(cluster)
}

/// Levels of a binary tree: ⌈log₂ p⌉.
fn levels(ranks: usize) -> f64 {
    (ranks.max(1) as f64).log2().ceil()
}

/// How long exchanges over one kind of wire take.
trait Times {
    fn scatter_or_gather(self, ranks: usize, bytes: f64) -> f64;
    fn doubling(self, ranks: usize, bytes: f64) -> f64;
    fn two_trees(self, ranks: usize, bytes: f64) -> f64;
    fn all_reduce(self, ranks: usize, bytes: f64) -> f64;
}

impl Times for Wire {
    /// Seconds in which every one of `ranks` ranks comes to have its part of sums of `bytes` bytes, or all parts.
    fn scatter_or_gather(self, ranks: usize, bytes: f64) -> f64 {
        if ranks < 2 {
            return 0.0;
        }
        let p = ranks as f64;
        let ring = p - 1.0;
        let halving = levels(ranks) * if ranks.is_power_of_two() { 1.0 } else { 2.0 };
        let moved = (p - 1.0) / p * bytes / self.bytes_per_second;
        ring.min(halving) * self.latency_seconds + moved
    }

    /// Seconds of a sum that every rank sends all of.
    fn doubling(self, ranks: usize, bytes: f64) -> f64 {
        levels(ranks) * (self.latency_seconds + bytes / self.bytes_per_second)
    }

    /// Seconds of a sum by two trees.
    fn two_trees(self, ranks: usize, bytes: f64) -> f64 {
        if ranks < 2 {
            return 0.0;
        }
        2.0 * (levels(ranks) * self.latency_seconds + bytes / self.bytes_per_second)
    }

    /// Seconds of a sum of `bytes` bytes that all have in the end.
    fn all_reduce(self, ranks: usize, bytes: f64) -> f64 {
        let both = 2.0 * self.scatter_or_gather(ranks, bytes);
        both.min(self.doubling(ranks, bytes)).min(self.two_trees(ranks, bytes))
    }
}

impl Cluster {
    /// Ranks with a device each, connected as its description says or, where it says nothing, as each is with its host.
    pub fn of_device(device: &Device) -> Cluster {
        let link = &device.link;
        let wire = Wire {
            latency_seconds: link.latency_seconds,
            bytes_per_second: link.to_host.min(link.to_device),
        };
        let hosts = Links { ranks_per_node: MAX_RANKS, within: wire, between: wire };
        let Links { ranks_per_node, within, between } = device.ranks.unwrap_or(hosts);
        Cluster { name: device.name.clone(), ranks_per_node, within, between }
    }

    /// Ranks of a node that take part, and nodes.
    fn shape(&self, ranks: usize) -> (usize, usize) {
        let within = self.ranks_per_node.min(ranks).max(1);
        (within, ranks.div_ceil(within))
    }

    /// Seconds of a reduce-scatter, or of an all-gather, of tensors of `bytes` bytes in all.
    pub fn scatter_or_gather(&self, ranks: usize, bytes: u64) -> f64 {
        let ((within, nodes), bytes) = (self.shape(ranks), bytes as f64);
        self.within.scatter_or_gather(within, bytes)
            + self.between.scatter_or_gather(nodes, bytes / within as f64)
    }

    /// Seconds of an all-reduce of tensors of `bytes` bytes in all: shares of them between nodes, or, of few, the whole.
    pub fn all_reduce(&self, ranks: usize, bytes: u64) -> f64 {
        let ((within, nodes), bytes) = (self.shape(ranks), bytes as f64);
        let shares = 2.0 * self.within.scatter_or_gather(within, bytes)
            + self.between.all_reduce(nodes, bytes / within as f64);
        let whole = self.within.all_reduce(within, bytes) + self.between.all_reduce(nodes, bytes);
        shares.min(whole)
    }

    /// Seconds of an exchange of a graph, were there so many ranks; `None` for other operators.
    pub fn node_seconds(&self, g: &Graph, n: NodeId, ranks: usize) -> Option<f64> {
        let node = &g.nodes[n];
        let bytes_of = |types: Vec<&arenic_ir::TensorType>| types.iter().map(|t| t.bytes()).sum();
        match node.op {
            Op::AllReduce { .. } => Some(self.all_reduce(ranks, bytes_of(g.input_types(n)))),
            Op::ReduceScatter { .. } => {
                Some(self.scatter_or_gather(ranks, bytes_of(g.input_types(n))))
            }
            Op::AllGather { .. } => {
                let wholes = node.outputs.iter().flatten().map(|&v| g.ty(v)).collect();
                Some(self.scatter_or_gather(ranks, bytes_of(wholes)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DGX: &str = include_str!("../clusters/dgx_h100.yaml");

    #[test]
    fn the_clusters_read_and_absurd_ones_do_not() {
        for (name, text) in NAMED {
            assert!(parse(text).is_ok_and(|cluster| cluster.ranks_per_node > 1), "{name}");
        }
        assert_eq!(parse(DGX).unwrap().ranks_per_node, 8);
        let refused = |from: &str, to: &str| parse(&DGX.replace(from, to)).unwrap_err().message;
        assert!(refused("ranks_per_node: 8", "ranks_per_node: 0").contains("at least 1"));
        assert!(refused("40.0e9", "0.0").contains("between.bytes_per_second"));
        assert!(refused("3.0e-6", "-1.0").contains("within.latency_seconds"));
        assert!(refused("within:", "inside:").contains("inside"));
    }

    /// By hand: a ring of 8 in a node, and both ways of large and small sums.
    #[test]
    fn exchanges_take_what_the_formulae_say() {
        let (fast, slow) = (
            Wire { latency_seconds: 1e-6, bytes_per_second: 1e9 },
            Wire { latency_seconds: 1e-5, bytes_per_second: 1e8 },
        );
        let name = String::new();
        let cluster = Cluster { name, ranks_per_node: 4, within: fast, between: slow };
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
        assert_eq!(cluster.scatter_or_gather(1, 1000), 0.0);
        // Four ranks: two steps, and three quarters of the bytes.
        close(cluster.scatter_or_gather(4, 1000), 2e-6 + 0.75e-6);
        // Two nodes of four: then half of a quarter of the bytes.
        close(cluster.scatter_or_gather(8, 1000), 2e-6 + 0.75e-6 + 1e-5 + 125e-8);
        // Three ranks: a ring's two steps rather than four.
        close(cluster.scatter_or_gather(3, 3000), 2e-6 + 2e-6);
        close(cluster.all_reduce(4, 8), 2.0 * (1e-6 + 8e-9));
        close(cluster.all_reduce(4, 1_000_000), 2.0 * (2e-6 + 0.75e-3));
        // Among five nodes of four, two trees of three levels with a quarter of the bytes; a ring has four steps each way.
        let within = 2.0 * (2e-6 + 12e-6);
        close(cluster.all_reduce(20, 16_000), within + 2.0 * (3e-5 + 4e-5));
    }

    /// No algorithm moves fewer bytes than 2·(p − 1)/p of all between nodes, and more ranks never take less time.
    #[test]
    fn all_reduces_keep_the_bound() {
        let cluster = parse(DGX).unwrap();
        for bytes in [4, 1 << 10, 1 << 20, 1 << 30] {
            let mut before = 0.0;
            for ranks in [1, 2, 4, 8, 16, 64, 512, 1024, 8192] {
                let seconds = cluster.all_reduce(ranks, bytes);
                assert!(
                    seconds >= before,
                    "{ranks} ranks, {bytes} bytes: {seconds} after {before}"
                );
                before = seconds;
                let p = ranks as f64;
                let fastest = cluster.within.bytes_per_second;
                assert!(seconds >= 2.0 * (p - 1.0) / p * bytes as f64 / fastest * 0.999);
            }
        }
    }
}
