//! Registers, spills, shared memory and instructions of kernels as NVRTC 13.0 makes them for sm_90, at the extents of
//! GPT-2 124M (8 × 1,024 tokens) and ResNet-50 (256 images): `kernels.txt`, which a change of kernels must explain.
//! `UPDATE_KERNELS=1` writes it anew. Counts are of the text of a kernel, of which loops run more than once.

mod cubin;
#[path = "../support/lowered.rs"]
mod lowered;

use arenic_ir::Math;
use arenic_runtime::cuda::nvrtc::{self, Architecture};
use arenic_runtime::cuda::{Module, Work};
use cubin::{Figures, OPERATIONS};
use lowered::lowered;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// What is compiled: how it is called, how it multiplies, and the operator.
const KERNELS: &[(&str, Math, &str)] = &[
    (
        "attention, bf16",
        Math::F32,
        r#"attention {"spec":{"scale":0.125,"causal":true,"positions_first":true}} (v0: bf16[8,1024,12,64], v1: bf16[8,1024,12,64], v2: bf16[8,1024,12,64])"#,
    ),
    (
        "gradient of attention, bf16",
        Math::F32,
        r#"attention_grad {"spec":{"scale":0.125,"causal":true,"positions_first":true},"has_result":true} (v0: bf16[8,1024,12,64], v1: bf16[8,1024,12,64], v2: bf16[8,1024,12,64], v3: f32[8,12,1024], v4: f32[8,12,1024], v5: bf16[8,1024,12,64], v6: bf16[8,1024,12,64])"#,
    ),
    (
        "gradient of attention and its bias, bf16",
        Math::F32,
        r#"attention_grad {"spec":{"scale":1.0},"of_mask":true} (v0: bf16[8,8,512,64], v1: bf16[8,8,512,64], v2: bf16[8,8,512,64], v3: f32[8,8,512], v4: f32[8,8,512], v5: bf16[8,8,512,64], v6: f32[1,8,512,512])"#,
    ),
    (
        "attention, TF32",
        Math::Tf32,
        r#"attention {"spec":{"scale":0.125,"causal":true}} (v0: f32[8,12,1024,64], v1: f32[8,12,1024,64], v2: f32[8,12,1024,64])"#,
    ),
    (
        "attention, f32",
        Math::F32,
        r#"attention {"spec":{"scale":0.125,"causal":true}} (v0: f32[8,12,1024,64], v1: f32[8,12,1024,64], v2: f32[8,12,1024,64])"#,
    ),
    ("product, f32", Math::F32, "mat_mul (v0: f32[8192,768], v1: f32[768,3072])"),
    (
        "product in parts, f32",
        Math::F32,
        r#"mat_mul {"trans_a":true} (v0: f32[8192,768], v1: f32[8192,768])"#,
    ),
    (
        "layer norm",
        Math::F32,
        r#"layer_norm {"axis":1,"epsilon":1e-5} (v0: f32[8192,768], v1: f32[768], v2: f32[768])"#,
    ),
    (
        "layer norm's gradient in a sum, rounded",
        Math::F32,
        r#"fused_norm {"of":{"fused_norm_grad":{"of":{"layer_norm_input_grad":{"axis":1}},"steps":[]}},"others":1,"steps":[{"binary":["add",1,0]}],"rounded":true} (v0: f32[8192,768], v1: f32[768], v2: f32[8192,1], v3: f32[8192,1], v4: bf16[8192,768], v5: f32[8192,768])"#,
    ),
    (
        "24 updates with momentum",
        Math::F32,
        r#"for_each {"of":{"pointwise":{"steps":[{"binary":["mul",1,4]},{"binary":["add",5,2]},{"binary":["mul",3,6]},{"binary":["sub",0,7]}],"results":[8,6]}},"lots":24} (v0: f32[768], v1: f32[768], v2: f32[768], v3: f32[], v4: f32[], v5: f32[768], v6: f32[768], v7: f32[768], v8: f32[], v9: f32[], v10: f32[768], v11: f32[768], v12: f32[768], v13: f32[], v14: f32[], v15: f32[768], v16: f32[768], v17: f32[768], v18: f32[], v19: f32[], v20: f32[768], v21: f32[768], v22: f32[768], v23: f32[], v24: f32[], v25: f32[768], v26: f32[768], v27: f32[768], v28: f32[], v29: f32[], v30: f32[768], v31: f32[768], v32: f32[768], v33: f32[], v34: f32[], v35: f32[768], v36: f32[768], v37: f32[768], v38: f32[], v39: f32[], v40: f32[768], v41: f32[768], v42: f32[768], v43: f32[], v44: f32[], v45: f32[768], v46: f32[768], v47: f32[768], v48: f32[], v49: f32[], v50: f32[768], v51: f32[768], v52: f32[768], v53: f32[], v54: f32[], v55: f32[768], v56: f32[768], v57: f32[768], v58: f32[], v59: f32[], v60: f32[768], v61: f32[768], v62: f32[768], v63: f32[], v64: f32[], v65: f32[768], v66: f32[768], v67: f32[768], v68: f32[], v69: f32[], v70: f32[768], v71: f32[768], v72: f32[768], v73: f32[], v74: f32[], v75: f32[768], v76: f32[768], v77: f32[768], v78: f32[], v79: f32[], v80: f32[768], v81: f32[768], v82: f32[768], v83: f32[], v84: f32[], v85: f32[768], v86: f32[768], v87: f32[768], v88: f32[], v89: f32[], v90: f32[768], v91: f32[768], v92: f32[768], v93: f32[], v94: f32[], v95: f32[768], v96: f32[768], v97: f32[768], v98: f32[], v99: f32[], v100: f32[768], v101: f32[768], v102: f32[768], v103: f32[], v104: f32[], v105: f32[768], v106: f32[768], v107: f32[768], v108: f32[], v109: f32[], v110: f32[768], v111: f32[768], v112: f32[768], v113: f32[], v114: f32[], v115: f32[768], v116: f32[768], v117: f32[768], v118: f32[], v119: f32[])"#,
    ),
    (
        "layer norm's gradient",
        Math::F32,
        r#"layer_norm_input_grad {"axis":1} (v0: f32[8192,768], v1: f32[8192,768], v2: f32[768], v3: f32[8192,1], v4: f32[8192,1])"#,
    ),
    (
        "layer norm's gradients of parameters",
        Math::F32,
        r#"layer_norm_param_grad {"axis":1} (v0: f32[8192,768], v1: f32[8192,768], v2: f32[8192,1], v3: f32[8192,1])"#,
    ),
    ("statistics of log softmax, bf16", Math::F32, "log_softmax_stats (v0: bf16[8192,50264])"),
    (
        "update",
        Math::F32,
        r#"adam {"alpha":0.9,"beta":0.99,"epsilon":0.001,"norm_coefficient":0.0,"norm_coefficient_post":0.0} (v0: f32[], v1: i64[], v2: f32[768,3072], v3: f32[768,3072], v4: f32[768,3072], v5: f32[768,3072])"#,
    ),
    (
        "heads change places, bf16",
        Math::F32,
        r#"transpose {"perm":[0,2,1,3]} (v0: bf16[8,1024,12,64])"#,
    ),
    ("cast to bf16", Math::F32, r#"cast {"to":"bf16"} (v0: f32[8192,768])"#),
    (
        "sum of two, bf16",
        Math::F32,
        r#"binary {"f":"add"} (v0: bf16[8192,768], v1: bf16[8192,768])"#,
    ),
    ("sum by rank", Math::F32, r#"all_reduce {"ranks":8} (v0: f32[1024,1024])"#),
    (
        "a bias's gradient",
        Math::F32,
        r#"reduce {"f":"sum","axes":[0],"keep":false} (v0: bf16[8192,3072])"#,
    ),
    (
        "batch norm, bf16",
        Math::F32,
        r#"batch_norm {"epsilon":1e-5} (v0: bf16[256,64,56,56], v1: f32[64], v2: f32[64])"#,
    ),
    (
        "batch norm's gradients of parameters, bf16",
        Math::F32,
        "batch_norm_param_grad (v0: bf16[256,64,56,56], v1: bf16[256,64,56,56], v2: f32[64], v3: f32[64])",
    ),
    (
        "batch norm, channels last, bf16",
        Math::F32,
        r#"batch_norm {"epsilon":1e-5} (v0: bf16[802816,256], v1: f32[256], v2: f32[256])"#,
    ),
    (
        "batch norm's gradient, channels last, bf16",
        Math::F32,
        "batch_norm_input_grad (v0: bf16[802816,256], v1: bf16[802816,256], v2: f32[256], v3: f32[256], v4: f32[256], v5: f32[256], v6: f32[256])",
    ),
    (
        "cross entropy's gradient, bf16",
        Math::F32,
        "cross_entropy_grad (v0: bf16[8192,50264], v1: f32[8192,1], v2: f32[8192,1], v3: i64[8192,1], v4: f32[8192,1])",
    ),
    (
        "convolution, f32",
        Math::F32,
        r#"conv {"window":{"kernel":[3,3],"strides":[1,1],"pads_begin":[1,1],"pads_end":[1,1],"dilations":[1,1]},"group":1} (v0: f32[256,64,56,56], v1: f32[64,64,3,3])"#,
    ),
];

/// The machine code of a text, where there is NVRTC.
fn compiled(source: &str) -> Option<BTreeMap<String, Figures>> {
    let found = nvrtc::version();
    if found != Some((13, 0)) {
        let required = std::env::var("ARENIC_REQUIRE_NVRTC").is_ok_and(|v| v == "1");
        assert!(!required || found.is_some(), "{}", nvrtc::CompileError::Missing);
        eprintln!("NOT COMPARED: kernels.txt is of NVRTC 13.0, and there is {found:?}");
        return None;
    }
    let code = nvrtc::compile(source, Architecture::Machine(90));
    Some(cubin::read(&code.unwrap_or_else(|e| panic!("{e}"))))
}

fn row(name: &str, f: &Figures) -> String {
    let mut text =
        format!("{name:<44}{:>5}{:>6}{:>7}{:>7}", f.registers, f.stack, f.shared, f.instructions);
    for (_, operation) in OPERATIONS {
        // Writing to a string does not fail.
        let _ = write!(text, "{:>6}", f.count(operation));
    }
    text
}

/// The kernels that work launches, ours throughout.
fn launched(works: &[Work], to: &mut Vec<String>) {
    for work in works {
        match work {
            Work::Launch(launch) => to.push(launch.kernel.to_string()),
            Work::Library(asked) => launched(&asked.instead, to),
            Work::Copy { .. } | Work::Exchange { .. } => {}
        }
    }
}

#[test]
fn machine_code_is_as_it_was() {
    let mut module = Module::default();
    let mut kernels = Vec::new();
    for (name, math, text) in KERNELS {
        let mut names = Vec::new();
        launched(&lowered(text, *math, &mut module).work, &mut names);
        kernels.push((name, names));
    }
    let Some(figures) = compiled(&module.source()) else { return };
    let mut text =
        format!("{:<44}{:>5}{:>6}{:>7}{:>7}", "kernel", "regs", "stack", "shared", "instrs");
    for (operation, _) in OPERATIONS {
        let _ = write!(text, "{operation:>6}");
    }
    text.push('\n');
    for (name, names) in kernels {
        for (i, kernel) in names.iter().enumerate() {
            let name =
                if names.len() > 1 { format!("{name}, {}", i + 1) } else { (*name).to_string() };
            text += &row(&name, &figures[kernel]);
            text.push('\n');
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machine_code/kernels.txt");
    if std::env::var("UPDATE_KERNELS").is_ok_and(|v| v == "1") {
        std::fs::write(path, text).unwrap();
        return;
    }
    let known = std::fs::read_to_string(path).unwrap();
    let changed: Vec<&str> =
        text.lines().filter(|line| !known.lines().any(|k| k == *line)).collect();
    assert!(
        known == text,
        "kernels have other machine code, now: {changed:#?}; if that is meant, UPDATE_KERNELS=1 writes it anew, \
         and the commit says why"
    );
}

/// What the reader sees of a kernel that spills, shares memory and multiplies.
#[test]
fn spills_and_shared_memory_are_seen() {
    let kernel = |bytes: u32, each: u32| {
        format!(
            "#include \"arenic.cuh\"
KERNEL(k0, 64, const float* x0, float* y0) {{
    __shared__ float shared[{bytes} / 4];
    float own[{each}];
    for (u32 i = 0; i < {each}u; i++) own[i] = x0[i * 64 + threadIdx.x];
    for (u32 i = 0; i < 1000u; i++) own[u32(x0[i]) % {each}u] += own[u32(x0[i + 1]) % {each}u];
    shared[threadIdx.x] = own[u32(x0[0]) % {each}u];
    __syncthreads();
    y0[threadIdx.x] = fmaf(shared[63 - threadIdx.x], 2.0f, x0[7]);
}}
"
        )
    };
    let Some(few) = compiled(&kernel(256, 1)) else { return };
    let many = compiled(&kernel(1024, 40)).unwrap();
    let (few, many) = (&few["k0"], &many["k0"]);
    assert_eq!((few.stack, few.shared), (0, 256));
    // Places of an array that are known when it runs are in memory: 40 floats.
    assert_eq!((many.stack, many.shared), (160, 1024));
    assert!(few.registers > 0 && few.instructions > 20);
    let count = |name: &str| {
        let (_, operation) = OPERATIONS.iter().find(|(n, _)| *n == name).unwrap();
        few.count(*operation)
    };
    assert_eq!((count("BAR"), count("FFMA"), count("STS"), count("LDS")), (1, 1, 1, 1));
}
