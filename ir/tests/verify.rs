//! Malformed graphs are refused (invariants I1 and I2), and stale facts are not readable
//! (invariant I4). That plan passes cannot change the graph (I3) is in their signature.

use arenic_backends::CPU;
use arenic_ir::plan::{Fact, Plan, PlanError, Slots};
use arenic_ir::text::Module;
use arenic_ir::verify::verify;

fn defect(items: &str) -> String {
    let module =
        Module::parse(&format!("graph \"\" {{\n{items}\n}}"), &arenic_backends::ALL).unwrap();
    verify(&module.graph).err().map_or("accepted".into(), |d| d.to_string())
}

#[test]
fn i1_not_a_cycle() {
    let text = r#"input v0: f32[2] "x"
      n0 binary {"f":"add"} (v0, v2) -> (v1: f32[2])
      n1 unary {"f":"exp"} (v1) -> (v2: f32[2])"#;
    assert!(defect(text).contains("a cycle"), "{}", defect(text));
    let views = "view v0: f32[2] = v1+0\nview v1: f32[2] = v0+0";
    assert!(defect(views).contains("views itself"));
    let module =
        Module::parse(&format!("graph \"\" {{ {views} }}"), &arenic_backends::ALL).unwrap();
    assert_eq!(Module::parse(&module.to_string(), &arenic_backends::ALL).unwrap(), module);
}

#[test]
fn i1_not_two_definitions() {
    let text = "graph \"\" { input v0: f32[2] \"x\"\n const v0: f32[] = [1.0] }";
    let error = Module::parse(text, &arenic_backends::ALL).unwrap_err();
    assert!(error.message.contains("v0 is defined twice"), "{error}");
    assert_eq!((error.line, error.column), (2, 10));
}

#[test]
fn i1_not_views_outside() {
    assert!(defect("input v0: f32[4] \"x\"\nview v1: f32[4] = v0+4").contains("does not lie"));
    assert!(defect("input v0: f32[4] \"x\"\nview v1: f32[2] = v0+2").contains("not aligned"));
}

#[test]
fn i2_not_one_generator_for_two_nodes() {
    let node = |n: usize| {
        format!(
            r#"n{n} random_uniform {{"dtype":"f32","shape":[2],"low":0.0,"high":1.0,"rng":{{"stream":9}}}} () -> (v{n}: f32[2])"#
        )
    };
    assert!(defect(&format!("{}\n{}", node(0), node(1))).contains("generator 9"));
    assert_eq!(defect(&node(0)), "accepted");
}

#[test]
fn i2_a_gradient_draws_what_its_attention_drew() {
    let text = |scale: &str, stream: u32| {
        format!(
            r#"input v0: f32[4,8] "x"
      n0 attention {{"spec":{{"scale":1.0,"dropout":{{"ratio":0.5,"rng":{{"stream":3}}}}}}}} (v0, v0, v0) -> (v1: f32[4,8], v2: f32[4], v3: f32[4])
      n1 attention_grad {{"spec":{{"scale":{scale},"dropout":{{"ratio":0.5,"rng":{{"stream":{stream}}}}}}}}} (v0, v0, v0, v2, v3, v1) -> (v4: f32[4,8], _, _)"#
        )
    };
    assert_eq!(defect(&text("1.0", 3)), "accepted");
    assert!(defect(&text("1.0", 4)).contains("no attention before it draws from generator 4"));
    assert!(defect(&text("2.0", 3)).contains("no attention before it draws from generator 3"));
}

#[test]
fn not_other_types_names_or_data() {
    let typed = r#"input v0: f32[2] "x"
      n0 unary {"f":"exp"} (v0) -> (v1: f32[3])"#;
    assert!(defect(typed).contains("v1 is f32[3], not f32[2]"));
    assert!(defect("input v0: f32[] \"x\"\ninput v1: f32[] \"x\"").contains("comes twice"));
    let state = "state s0 \"w\": v0: f32[2] -> v1\ninput v1: f32[3] \"x\"";
    assert!(defect(state).contains("enters as f32[2], leaves as f32[3]"));
}

#[test]
fn i4_not_a_stale_fact() {
    let text = r#"graph "" {
  input v0: f32[2] "x"
  n0 unary {"f":"exp"} (v0) -> (v1: f32[2])
  output "y" v1
}"#;
    let g = Module::parse(text, &arenic_backends::ALL).unwrap().graph;
    let mut plan = Plan::new(&g, CPU.target()).unwrap();
    assert_eq!(plan.order().unwrap_err(), PlanError::MissingFact { fact: Fact::Order });
    let order: Vec<_> = plan.tasks.keys().collect();
    plan.set_order(&g, order.clone()).unwrap();
    plan.set_slots(Slots::default());
    assert!(plan.slots().is_ok());
    plan.set_order(&g, order).unwrap();
    let stale = plan.slots().unwrap_err();
    assert_eq!(stale, PlanError::MissingFact { fact: Fact::Slots });
    assert!(stale.to_string().contains("`share_in_place` gives it"));
    assert!(plan.set_order(&g, Vec::new()).is_err());
    assert!(plan.order().is_err(), "a refused order leaves none behind");
}

/// Reading and verifying take time in proportion to the text: what took the square of it took
/// minutes for each of these.
#[test]
fn long_texts_are_read_in_linear_time() {
    let begun = std::time::Instant::now();
    let read = |items: &str| {
        let module =
            Module::parse(&format!("graph \"\" {{\n{items}\n}}"), &arenic_backends::ALL).unwrap();
        verify(&module.graph).unwrap();
        module.graph
    };
    let node = |i: usize| {
        format!("n{i} \"layer.{i}/Relu\" unary {{\"f\":\"relu\"}} (v{i}) -> (v{}: f32[8])\n", i + 1)
    };
    let nodes: String = (0..60_000).map(node).collect();
    assert_eq!(read(&format!("input v0: f32[8] \"x\"\n{nodes}")).nodes.len(), 60_000);

    let ones = vec!["1"; 300_000].join(", ");
    let constant = read(&format!("const v0: i64[300000] \"c\" = [{ones}]"));
    assert_eq!(constant.consts().count(), 1);

    // From the last to the first, and from the first to the last.
    const VIEWS: usize = 60_000;
    let chain = |of: fn(usize) -> usize, root: usize| -> String {
        let view = |v: usize| match v == root {
            true => format!("input v{v}: f32[8] \"x\"\n"),
            false => format!("view v{v}: f32[8] = v{}+0\n", of(v)),
        };
        (0..VIEWS).map(view).collect()
    };
    read(&chain(|v| v - 1, 0));
    read(&chain(|v| v + 1, VIEWS - 1));
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
}

#[test]
fn i1_no_view_of_a_view_of_itself() {
    // `v0` leads to a cycle of which it is no part.
    let views = "view v0: f32[2] = v1+0\nview v1: f32[2] = v2+0\nview v2: f32[2] = v1+0";
    assert_eq!(defect(views), "v0: views itself");
    let behind = "input v0: f32[2] \"x\"\nview v1: f32[2] = v0+0\nview v2: f32[2] = v3+0
        view v3: f32[2] = v3+0\nview v4: f32[2] = v2+0";
    assert_eq!(defect(behind), "v2: views itself");
}
