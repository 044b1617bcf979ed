//! Malformed graphs are refused (invariants I1 and I2), and stale facts are not readable
//! (invariant I4). That plan passes cannot change the graph (I3) is in their signature.

use arenic_ir::plan::{Fact, Plan, PlanError, Slots, TargetInfo};
use arenic_ir::text::Module;
use arenic_ir::verify::verify;

fn defect(items: &str) -> String {
    let module = Module::parse(&format!("graph \"\" {{\n{items}\n}}")).unwrap();
    verify(&module.graph).err().map_or("accepted".into(), |d| d.to_string())
}

#[test]
fn i1_not_a_cycle() {
    let text = r#"input v0: f32[2] "x"
      n0 binary {"f":"add"} (v0, v2) -> (v1: f32[2])
      n1 unary {"f":"exp"} (v1) -> (v2: f32[2])"#;
    assert!(defect(text).contains("a cycle"), "{}", defect(text));
    assert!(defect("view v0: f32[2] = v1+0\nview v1: f32[2] = v0+0").contains("views itself"));
}

#[test]
fn i1_not_two_definitions() {
    let text = "graph \"\" { input v0: f32[2] \"x\"\n const v0: f32[] = [1.0] }";
    let error = Module::parse(text).unwrap_err();
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
    let g = Module::parse(text).unwrap().graph;
    let mut plan = Plan::new(&g, TargetInfo::CPU).unwrap();
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
