//! Random sequences of orders: the node handles only what changed, and must end where the last state
//! alone leads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::fake_machine::NodeFixture;
use nearpath_node::SettleHook;
use nearpath_types::{
    DesiredFunction, DesiredState, FunctionId, FunctionMap, FunctionSpec, InstanceState, Revision,
};
use proptest::prelude::*;

const NAMES: [&str; 3] = ["a", "b", "c.dev"];

/// State of a function after one order.
#[derive(Debug, Clone)]
enum Order {
    /// Deploys it anew, in a chain or not, with so many replicas.
    Deploy(bool, u32),
    Scale(u32),
    Remove,
}

/// Function, order, and whether the caller waits for its publication.
type Step = (usize, Order, bool);

fn any_step() -> impl Strategy<Value = Step> {
    let order = prop_oneof![
        3 => (any::<bool>(), 0u32..3).prop_map(|(chain, replicas)| Order::Deploy(chain, replicas)),
        3 => (0u32..3).prop_map(Order::Scale),
        1 => Just(Order::Remove),
    ];
    (0..NAMES.len(), order, any::<bool>())
}

/// Changes one function, as a controller does: versions share the others.
fn apply_order(state: &mut DesiredState, revision: u64, code: &str, (function, order, _): &Step) {
    let id: FunctionId = NAMES[*function].parse().unwrap();
    match order {
        Order::Remove => drop(state.functions.remove(&id)),
        Order::Scale(replicas) => {
            if let Some(known) = state.functions.get(&id).cloned() {
                let scaled = DesiredFunction {
                    replicas: *replicas,
                    ..DesiredFunction::clone(&known)
                };
                state.functions.insert(id, scaled);
            }
        }
        Order::Deploy(in_chain, replicas) => {
            let mut spec = FunctionSpec::named(id.name.clone());
            (spec.namespace, spec.image) = (id.namespace.clone(), code.to_owned());
            if *in_chain {
                let chain = ("nearpath.io/chain".to_owned(), "shop".to_owned());
                spec.annotations = BTreeMap::from([chain]);
            }
            let deployed = DesiredFunction {
                spec: Arc::new(spec),
                revision: Revision(revision),
                replicas: *replicas,
                secrets: BTreeMap::new(),
            };
            state.functions.insert(id, deployed);
        }
    }
}

/// Replicas, chain and revisions of the ready instances, by function.
type Shape = BTreeMap<FunctionId, (u32, Option<String>, Vec<Revision>)>;

/// The shape of a settled node; `None` while instances start or drain.
fn shape_of(fixture: &NodeFixture) -> Option<Shape> {
    let observed = fixture.node.watch_observed().borrow().clone();
    let snapshot = fixture.node.watch_snapshots().borrow().clone();
    let instances = observed.values().flat_map(|one| &one.instances);
    let is_settled = instances
        .map(|one| one.state)
        .all(|state| state == InstanceState::Ready);
    let routed: Vec<_> = snapshot.functions.iter().map(|(id, _)| id).collect();
    if !is_settled || routed != observed.iter().map(|(id, _)| id).collect::<Vec<_>>() {
        return None;
    }
    let shape = |(id, seen): (&FunctionId, &Arc<nearpath_types::ObservedFunction>)| {
        let route = snapshot.functions.get(id)?;
        // The snapshot is published first.
        let revisions = seen.instances.iter().map(|one| one.revision).collect();
        let is_whole = route.instances.len() == seen.instances.len()
            && route.replicas as usize == seen.instances.len();
        is_whole.then(|| {
            (
                id.clone(),
                (route.replicas, route.policy.chain.clone(), revisions),
            )
        })
    };
    observed.iter().map(shape).collect()
}

async fn settled_shape(fixture: &NodeFixture, desired: &DesiredState) -> Shape {
    let mut observed = fixture.node.watch_observed();
    fixture.node.wait_published().await;
    loop {
        match shape_of(fixture) {
            Some(shape) if shape.len() == desired.functions.len() => return shape,
            _ => observed.changed().await.unwrap(),
        }
    }
}

async fn new_fixture() -> NodeFixture {
    NodeFixture::new(SettleHook::after_delay(Duration::from_millis(10))).await
}

/// Shapes of a node that got every state, and of one that got only the last.
async fn follow_and_rebuild(steps: &[Step]) -> (Shape, Shape) {
    let (following, rebuilt) = (new_fixture().await, new_fixture().await);
    let code = format!("file://{}", following.code().display());
    let mut state = DesiredState {
        functions: FunctionMap::default(),
        ..DesiredState::default()
    };
    for (step, revision) in steps.iter().zip(1..) {
        apply_order(&mut state, revision, &code, step);
        following.node.apply_desired(state.clone());
        if step.2 {
            following.node.wait_published().await;
        }
    }
    rebuilt.node.apply_desired(state.clone());
    let shapes = (
        settled_shape(&following, &state).await,
        settled_shape(&rebuilt, &state).await,
    );
    following.node.drain_and_stop().await;
    rebuilt.node.drain_and_stop().await;
    shapes
}

fn in_virtual_time<T>(what: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let limit = Duration::from_secs(3_600);
        tokio::time::timeout(limit, what)
            .await
            .expect("the node settles")
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_node_ends_where_the_last_state_alone_leads(steps in prop::collection::vec(any_step(), 1..16)) {
        let (followed, rebuilt) = in_virtual_time(follow_and_rebuild(&steps));
        prop_assert_eq!(followed, rebuilt);
    }
}

#[test]
fn a_missing_order_is_noticed() {
    let steps = [
        (0, Order::Deploy(true, 1), true),
        (1, Order::Deploy(false, 2), false),
    ];
    let (all, _) = in_virtual_time(follow_and_rebuild(&steps));
    let (fewer, _) = in_virtual_time(follow_and_rebuild(&steps[..1]));
    let (other, _) = in_virtual_time(follow_and_rebuild(&[
        steps[0].clone(),
        (1, Order::Deploy(false, 1), true),
    ]));
    assert!(all != fewer && all != other && fewer != other);
}
