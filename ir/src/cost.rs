//! Devices, and how long operators and copies take on them.
//!
//! The estimate is the roofline (Williams, Waterman and Patterson, CACM 2009): an operator
//! takes the longer of its arithmetic and its memory traffic, after the cost of a launch.
//! Each peak has an efficiency, the part of it that kernels reach. What a [`Profile`]
//! measured goes before the estimate.

use crate::backend::Math;
use crate::graph::{Graph, NodeId};
use crate::op::{Op, TypeError, Work, WorkKind};
use crate::profile::{KernelTimes, OtherDevice, Profile};
use crate::types::{DType, TensorType};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A device, as `passes/devices/*.yaml` describe it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// What it is called.
    pub name: String,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Bytes of it that a plan leaves to drivers and libraries.
    pub reserve_bytes: u64,
    /// Alignment of every buffer, in bytes, a power of two.
    pub alignment: u64,
    /// Its memory.
    pub memory: Memory,
    /// Its arithmetic for each element type; a type that is not named counts as `f32`.
    pub arithmetic: BTreeMap<DType, Arithmetic>,
    /// Its products of `f32` that is rounded to TF32; without one as of any `f32`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tf32: Option<Arithmetic>,
    /// What a backend's own kernels reach where they multiply matrices; without it, the rates of
    /// `arithmetic`, and for `bf16` those of `f32`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_kernels: Option<OwnKernels>,
    /// Its memory is the host's: what is in the host arena takes of the same bytes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unified_memory: bool,
    /// Its link to host memory.
    pub link: Link,
    /// The links between ranks; without it each is taken to be like the link to the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<Links>,
    /// Seconds before each kernel begins.
    pub launch_seconds: f64,
    /// Times of kernels that were measured.
    #[serde(skip)]
    pub measured: KernelTimes,
    /// Bytes of workspace that libraries used for one operator at most, where that was measured.
    #[serde(skip)]
    pub workspace: Option<u64>,
    /// How products of `f32` are multiplied.
    #[serde(skip)]
    pub math: Math,
}

/// Channels that a convolution on tensor cores needs for their full rate. An H200 took 18 times as long for 3
/// channels.
const CHANNELS_AT_ONCE: f64 = 64.0;

/// Memory bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Peak bytes per second.
    pub bytes_per_second: f64,
    /// The part of the peak that kernels reach, in (0, 1].
    pub efficiency: f64,
}

/// Throughput of arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arithmetic {
    /// Peak operations per second.
    pub flops_per_second: f64,
    /// The part of the peak that kernels reach, in (0, 1].
    pub efficiency: f64,
}

/// Operations per second that a backend's own kernels reach, not those of libraries.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnKernels {
    /// Products, by multiplications and additions of `f32`.
    pub product: f64,
    /// Attention, by its element type.
    pub attention: OwnAttention,
}

/// Operations per second of attention; some of them are exponentials and moves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnAttention {
    /// Of `f32`, by multiplications and additions.
    pub f32: f64,
    /// Of `f32` that is rounded to TF32, by tensor cores.
    pub tf32: f64,
    /// Of `bf16`, by tensor cores.
    pub bf16: f64,
}

impl OwnKernels {
    /// Those of a device that is so many times as fast.
    pub fn times(self, factor: f64) -> OwnKernels {
        let OwnAttention { f32, tf32, bf16 } = self.attention;
        let attention =
            OwnAttention { f32: f32 * factor, tf32: tf32 * factor, bf16: bf16 * factor };
        OwnKernels { product: self.product * factor, attention }
    }
}

impl Arithmetic {
    /// Operations per second that kernels reach.
    fn reached(&self) -> f64 {
        self.flops_per_second * self.efficiency
    }
}

/// The link between device and host memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Bytes per second from the device to the host.
    pub to_host: f64,
    /// Bytes per second from the host to the device.
    pub to_device: f64,
    /// Bytes per second each way while copies run both ways.
    pub both: f64,
    /// How many copies can run at once: 1, or 2 (one each way).
    pub copy_engines: u8,
    /// Seconds before each copy begins.
    pub latency_seconds: f64,
    /// What changes where kernels run beside copies.
    #[serde(default, skip_serializing_if = "BesideKernels::is_nothing")]
    pub beside_kernels: BesideKernels,
}

/// What copies and the kernels beside them take from each other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BesideKernels {
    /// The part of the link's rates that copies reach, in (0, 1]. A profile measures copies alone.
    pub rate: f64,
    /// Seconds that kernels lose in each second of a copy, in [0, 1).
    pub drag: f64,
    /// Seconds that kernels lose each time they wait for a copy, whether or not it has ended.
    pub join_seconds: f64,
}

/// Copies and kernels leave each other alone.
impl Default for BesideKernels {
    fn default() -> Self {
        BesideKernels { rate: 1.0, drag: 0.0, join_seconds: 0.0 }
    }
}

impl BesideKernels {
    fn is_nothing(&self) -> bool {
        *self == BesideKernels::default()
    }
}

/// The links between ranks that have such a device each.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Links {
    /// How many ranks a node has.
    pub ranks_per_node: usize,
    /// Between ranks of a node.
    pub within: Wire,
    /// Between ranks of different nodes, for each rank.
    pub between: Wire,
}

/// A link between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wire {
    /// Seconds that a message takes whatever its size: α.
    pub latency_seconds: f64,
    /// Bytes per second of a rank in one direction: 1/β.
    pub bytes_per_second: f64,
}

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// From the device to the host.
    ToHost,
    /// From the host to the device.
    ToDevice,
}

/// Why a description is none of a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` {message}")]
pub struct DeviceError {
    /// The field.
    pub field: &'static str,
    /// What is wrong with it.
    pub message: String,
}

impl Device {
    /// Refuses descriptions that no device has.
    ///
    /// # Errors
    /// A number that is not finite or not positive, an efficiency above 1, an alignment
    /// that is no power of two, no arithmetic for `f32`.
    pub fn validate(&self) -> Result<(), DeviceError> {
        let wrong = |field, message: String| Err(DeviceError { field, message });
        let positive = |field, x: f64| match x.is_finite() && x > 0.0 {
            true => Ok(()),
            false => wrong(field, format!("is {x}; a positive number is needed")),
        };
        let efficiency = |x: f64| match x > 0.0 && x <= 1.0 {
            true => Ok(()),
            false => wrong("efficiency", format!("is {x}; it lies above 0 and up to 1")),
        };
        if self.name.trim().is_empty() {
            return wrong("name", "is empty".into());
        }
        if self.memory_bytes == 0 || self.reserve_bytes >= self.memory_bytes {
            let message =
                format!("is {}, and {} are reserved", self.memory_bytes, self.reserve_bytes);
            return wrong("memory_bytes", message);
        }
        if !self.alignment.is_power_of_two() || self.alignment > 1 << 20 {
            let message = format!("is {}; a power of two up to 2^20 is needed", self.alignment);
            return wrong("alignment", message);
        }
        positive("memory.bytes_per_second", self.memory.bytes_per_second)?;
        efficiency(self.memory.efficiency)?;
        if !self.arithmetic.contains_key(&DType::F32) {
            return wrong("arithmetic", "says nothing of `f32`".into());
        }
        for rate in self.arithmetic.values().chain(&self.tf32) {
            positive("flops_per_second", rate.flops_per_second)?;
            efficiency(rate.efficiency)?;
        }
        if let Some(own) = &self.own_kernels {
            let OwnAttention { f32, tf32, bf16 } = own.attention;
            positive("own_kernels.product", own.product)?;
            for rate in [f32, tf32, bf16] {
                positive("own_kernels.attention", rate)?;
            }
        }
        for Wire { latency_seconds, bytes_per_second } in
            self.ranks.iter().flat_map(|links| [links.within, links.between])
        {
            positive("ranks.bytes_per_second", bytes_per_second)?;
            if !(latency_seconds.is_finite() && latency_seconds >= 0.0) {
                return wrong("ranks.latency_seconds", format!("is {latency_seconds}"));
            }
        }
        if self.ranks.is_some_and(|links| links.ranks_per_node == 0) {
            return wrong("ranks.ranks_per_node", "is 0".into());
        }
        positive("link.to_host", self.link.to_host)?;
        positive("link.to_device", self.link.to_device)?;
        positive("link.both", self.link.both)?;
        let BesideKernels { rate, drag, join_seconds } = self.link.beside_kernels;
        if !(rate > 0.0 && rate <= 1.0) {
            return wrong(
                "link.beside_kernels.rate",
                format!("is {rate}; it lies above 0 and up to 1"),
            );
        }
        if !(0.0..1.0).contains(&drag) {
            return wrong(
                "link.beside_kernels.drag",
                format!("is {drag}; it lies from 0 to below 1"),
            );
        }
        if !(1..=2).contains(&self.link.copy_engines) {
            let message = format!("is {}; it is 1 or 2", self.link.copy_engines);
            return wrong("link.copy_engines", message);
        }
        for (field, x) in [
            ("launch_seconds", self.launch_seconds),
            ("link.latency_seconds", self.link.latency_seconds),
            ("link.beside_kernels.join_seconds", join_seconds),
        ] {
            if !(x.is_finite() && x >= 0.0) {
                return wrong(field, format!("is {x}; it cannot be negative"));
            }
        }
        Ok(())
    }

    /// Bytes that a plan may use.
    pub fn usable_bytes(&self) -> u64 {
        self.memory_bytes.saturating_sub(self.reserve_bytes)
    }

    /// The device with the times of kernels, the rates of the link and the libraries' workspace that
    /// were measured.
    ///
    /// # Errors
    /// They were measured on another device.
    pub fn with_profile(mut self, profile: &Profile) -> Result<Device, OtherDevice> {
        let found = &profile.machine;
        if found.device != self.name {
            return Err(OtherDevice { measured: found.device.clone(), wanted: self.name });
        }
        self.link.to_host = found.to_host_bytes_per_second;
        self.link.to_device = found.to_device_bytes_per_second;
        self.link.both = found.both_bytes_per_second;
        self.workspace = found.workspace_bytes;
        profile.kernels.iter().for_each(|kernel| {
            self.measured.insert(kernel);
        });
        Ok(self)
    }

    /// The device, on which libraries multiply so.
    pub fn with_math(&self, math: Math) -> Device {
        Device { math, ..self.clone() }
    }

    /// Seconds that a kernel of this work takes by its roofline, its launch included. Tensors that
    /// tensor cores need turned are read and written once more.
    pub fn kernel_seconds(&self, work: &Work) -> f64 {
        let tensor_cores = match work.dtype {
            DType::F32 if self.math == Math::Tf32 => self.tf32.as_ref(),
            DType::Bf16 => self.arithmetic.get(&DType::Bf16),
            _ => None,
        }
        .filter(|_| work.kind == WorkKind::Product);
        // Products alone are multiplied in `bf16`; everything else widens it.
        let dtype = if work.dtype == DType::Bf16 { DType::F32 } else { work.dtype };
        let plain = self.arithmetic.get(&dtype).or_else(|| self.arithmetic.get(&DType::F32));
        let own = self.own_kernels.as_ref().and_then(|own| match (work.kind, work.dtype) {
            (WorkKind::FusedProduct, DType::F32) => Some(own.product),
            (WorkKind::Attention, DType::Bf16) => Some(own.attention.bf16),
            (WorkKind::Attention, DType::F32) => Some(match self.math {
                Math::Tf32 => own.attention.tf32,
                Math::F32 => own.attention.f32,
            }),
            _ => None,
        });
        let reached = own.or_else(|| tensor_cores.or(plain).map(Arithmetic::reached));
        let idle_lanes = match tensor_cores {
            Some(_) => (CHANNELS_AT_ONCE / work.channels.max(1) as f64).max(1.0),
            None => 1.0,
        };
        let arithmetic = reached.map_or(0.0, |reached| work.flops as f64 * idle_lanes / reached);
        let rate = self.memory.bytes_per_second * self.memory.efficiency;
        let traffic = work.bytes as f64 / rate;
        let turning = match tensor_cores {
            Some(_) => 2.0 * work.turned_bytes as f64 / rate,
            None => 0.0,
        };
        self.launch_seconds + arithmetic.max(traffic) + turning
    }

    /// Seconds that an operator takes by its roofline.
    ///
    /// # Errors
    /// The operands do not fit.
    pub fn roofline_seconds(&self, op: &Op, inputs: &[&TensorType]) -> Result<f64, TypeError> {
        let outputs = op.infer(inputs)?;
        Ok(self.kernel_seconds(&op.work(inputs, &outputs.iter().collect::<Vec<_>>())))
    }

    /// Seconds that a node takes: as measured, or else by its roofline.
    ///
    /// # Errors
    /// Its operands do not fit; the graph was not verified.
    pub fn node_seconds(&self, g: &Graph, n: NodeId) -> Result<f64, TypeError> {
        let (op, inputs) = (&g.nodes[n].op, g.input_types(n));
        match self.measured.seconds(op, &inputs) {
            Some(seconds) => Ok(seconds),
            None => self.roofline_seconds(op, &inputs),
        }
    }

    /// How many nodes of the graph have no measured time.
    pub fn unmeasured_nodes(&self, g: &Graph) -> usize {
        let time = |n| self.measured.seconds(&g.nodes[n].op, &g.input_types(n));
        g.nodes.keys().filter(|&n| time(n).is_none()).count()
    }

    /// Seconds that a copy beside kernels takes which has the link to itself.
    pub fn copy_seconds(&self, direction: Direction, bytes: u64) -> f64 {
        self.link.latency_seconds + bytes as f64 / self.link.rate(direction)
    }

    /// Seconds that kernels lose by a copy beside them.
    pub fn lost_seconds(&self, direction: Direction, bytes: u64) -> f64 {
        let BesideKernels { drag, join_seconds, .. } = self.link.beside_kernels;
        join_seconds + drag * bytes as f64 / self.link.rate(direction)
    }
}

impl Link {
    /// Bytes per second that a copy reaches beside kernels, alone on the link.
    pub fn rate(&self, direction: Direction) -> f64 {
        let alone = match direction {
            Direction::ToHost => self.to_host,
            Direction::ToDevice => self.to_device,
        };
        alone * self.beside_kernels.rate
    }

    /// Bytes per second each way that copies both ways reach beside kernels.
    pub fn rate_both_ways(&self) -> f64 {
        self.both * self.beside_kernels.rate
    }
}
