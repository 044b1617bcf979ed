//! Attentions: a library that has the names of the driver's functions must stand in for the driver
//! (`tests/cuda/stand_in.py`). Kernels are then compiled, and plans are final. That they can be loaded,
//! what they compute, and that ordered sums always give the same bits is for a device to show.

use super::*;

const A100: &str = include_str!("../../../../../../tests/cuda/devices/a100.json");
const RTX_4090: &str = include_str!("../../../../../../tests/cuda/devices/rtx4090.json");

/// How matrices lie.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// One after another.
    Dense,
    /// Row by row, those of all heads beside each other.
    HeadsLast,
    /// As `HeadsLast`; queries, keys and values are beside each other, too.
    OneProduct,
}

/// A causal attention of a sequence on itself that reads and gives matrices as a layout has them.
fn attention([batch, heads, key_heads, rows, depth]: [usize; 5], layout: Layout) -> Attention {
    let (queries, keys) = (heads * depth, key_heads * depth);
    let of = |elements: usize| match layout {
        Layout::Dense => [rows * elements, rows * depth, depth],
        Layout::HeadsLast => [rows * elements, depth, elements],
        Layout::OneProduct => [rows * (queries + 2 * keys), depth, queries + 2 * keys],
    };
    let result = match layout {
        Layout::OneProduct => [rows * queries, depth, queries],
        Layout::Dense | Layout::HeadsLast => of(queries),
    };
    Attention {
        dtype: DType::Bf16,
        gradients: false,
        batch,
        heads,
        key_heads,
        queries: rows,
        keys: rows,
        depth,
        width: depth,
        scale: 0.125,
        causal: true,
        keeps_statistics: false,
        strides: [of(queries), of(keys), of(keys), result],
        first: [0; 4],
        packed: false,
    }
}

/// The result alone, with statistics, and the gradients.
fn kinds(a: &Attention) -> [Attention; 3] {
    let [mut kept, mut gradients] = [a.clone(), a.clone()];
    kept.keeps_statistics = true;
    gradients.gradients = true;
    [a.clone(), kept, gradients]
}

const GPT_2: [usize; 5] = [8, 12, 12, 1024, 64];

/// Plans of elements as they are stored, in any workspace.
fn planned(a: &Attention, device: &Device, plans: usize) -> Result<Vec<DnnCall>, DriverError> {
    let wanted = Wanted { rounds: a.dtype == DType::Bf16, workspace: u64::MAX, plans };
    attentions(a, device, wanted)
}

fn has_plans(a: &Attention, device: &Device, plans: usize) {
    let calls = planned(a, device, plans).unwrap();
    assert!(calls.iter().all(|c| c.plan.by_tensor_cores), "{a:?}");
    let (ordered, unordered): (Vec<_>, Vec<_>) = calls.iter().partition(|c| c.plan.deterministic);
    assert!(!ordered.is_empty(), "no plan always gives the same bits: {a:?}");
    assert_eq!(unordered.is_empty(), !a.gradients, "{a:?}");
    for (calls, most) in [(ordered, a.workspace_in_order()), (unordered, a.workspace())] {
        for call in calls {
            let (engine, workspace) = (call.plan.engine, call.own + call.plan.workspace);
            println!("engine {engine}, {workspace} bytes of {most}: {a:?}");
            assert!(workspace <= most, "{a:?}");
        }
    }
}

#[test]
#[ignore = "needs libcudnn.so.9 and a stand-in for the driver"]
fn every_kind_and_layout_has_plans() {
    is_there().unwrap();
    let device = described(H100);
    for (shape, causal) in
        [(GPT_2, true), ([64, 12, 12, 197, 64], false), ([4, 32, 8, 512, 128], true)]
    {
        for layout in [Layout::Dense, Layout::HeadsLast, Layout::OneProduct] {
            let a = Attention { causal, ..attention(shape, layout) };
            kinds(&a).iter().for_each(|a| has_plans(a, &device, 1));
        }
    }
}

#[test]
#[ignore = "needs libcudnn.so.9 and a stand-in for the driver"]
fn extents_may_be_odd_and_differ() {
    is_there().unwrap();
    let device = described(H100);
    for [queries, keys, depth, width] in [
        [129, 129, 64, 64],
        [130, 70, 64, 128],
        [70, 130, 128, 64],
        [1, 128, 72, 8],
        [128, 1, 256, 256],
        [100, 100, 192, 128],
    ] {
        for (key_heads, causal) in [(4, true), (2, false)] {
            let of = |heads, rows, elements| [heads * rows * elements, rows * elements, elements];
            let a = Attention {
                queries,
                keys,
                depth,
                width,
                causal,
                strides: [
                    of(4, queries, depth),
                    of(key_heads, keys, depth),
                    of(key_heads, keys, width),
                    of(4, queries, width),
                ],
                ..attention([2, 4, key_heads, 1, 8], Layout::Dense)
            };
            kinds(&a).iter().for_each(|a| has_plans(a, &device, 2));
        }
    }
}

#[test]
#[ignore = "needs libcudnn.so.9 and a stand-in for the driver"]
fn other_devices_have_plans() {
    is_there().unwrap();
    for device in [A100, RTX_4090].map(described) {
        kinds(&attention(GPT_2, Layout::OneProduct)).iter().for_each(|a| has_plans(a, &device, 1));
    }
}

#[test]
#[ignore = "needs libcudnn.so.9 and a stand-in for the driver"]
fn what_no_engine_takes_has_no_plan() {
    is_there().unwrap();
    let device = described(H100);
    let odd = attention([8, 12, 12, 1024, 63], Layout::Dense);
    let floats = Attention { dtype: DType::F32, ..attention(GPT_2, Layout::Dense) };
    let ungrouped = attention([8, 12, 5, 1024, 64], Layout::Dense);
    for a in [odd, floats, ungrouped].iter().flat_map(kinds) {
        let found = planned(&a, &device, WAYS);
        assert!(found.is_err() || found.is_ok_and(|calls| calls.is_empty()), "{a:?}");
    }
    // One query on one key has no gradients that NVIDIA's frontend would ask for.
    let [.., one] = kinds(&attention([8, 12, 12, 1, 64], Layout::Dense));
    assert!(planned(&one, &device, WAYS).unwrap().is_empty());
    let [.., tight] = kinds(&attention(GPT_2, Layout::Dense));
    let wanted = Wanted { rounds: true, workspace: 0, plans: WAYS };
    assert!(attentions(&tight, &device, wanted).unwrap().is_empty());
}

#[test]
fn versions_with_mistakes_take_none() {
    assert!(takes_attentions(91_500).is_err());
    assert!(takes_attentions(91_900).is_ok());
}
