//! Virtual addresses of callees: from their declaration on, and as long as a name is needed.

use nearpath_types::policy::CALLS;

use super::address_tests::{address_of, deploy, ipv4, model_with_free, remove};
use super::declared_tests::state_of;
use super::tests::{assert_addresses_sound, assert_sound, at_seconds, run_command, test_spec};
use super::*;

fn caller_spec(name: &str, calls: &str) -> FunctionSpec {
    let mut spec = test_spec(name);
    spec.annotations.insert(CALLS.into(), calls.into());
    spec
}

fn deploy_caller(model: &mut ControllerModel, name: &str, calls: &str) {
    let command = ControllerCommand::Deploy(caller_spec(name, calls));
    run_command(model, command).unwrap();
    assert_sound(model);
}

fn apply_specs<const N: usize>(
    model: &mut ControllerModel,
    specs: [FunctionSpec; N],
) -> CommandDecision {
    let command = ControllerCommand::ApplyDeclared(Arc::new(state_of(specs)));
    let decision = decide_command(model, &command, at_seconds(1)).unwrap();
    let changes = decision.changes.iter().cloned();
    changes.for_each(|change| model.apply_change(change));
    assert_addresses_sound(model);
    decision
}

#[test]
fn a_declared_callee_has_an_address_before_it_is_deployed() {
    let mut model = ControllerModel::default();
    let prefix = AddressPrefix::from_random([1; 5]);
    model.apply_change(ModelChange::AddressPrefix(prefix));
    deploy_caller(&mut model, "web", "cart, user.dev");
    let declared = model.desired_state().addresses;
    let names: Vec<_> = declared.iter().map(|(id, _)| id.to_string()).collect();
    assert_eq!(names, ["cart.openfaas-fn", "user.dev", "web.openfaas-fn"]);
    assert_eq!(address_of(&model, "cart"), ipv4("10.60.0.2"));
    assert_eq!(deploy(&mut model, "cart"), ipv4("10.60.0.2"));
    let addresses = model.desired_state().addresses;
    assert_eq!(addresses.changes_since(&declared).count(), 0);
}

#[test]
fn a_callee_keeps_its_address_while_it_is_declared() {
    let mut model = ControllerModel::default();
    deploy(&mut model, "cart");
    deploy_caller(&mut model, "web", "cart");
    for _ in 0..2 {
        remove(&mut model, "cart");
        assert_eq!(address_of(&model, "cart"), ipv4("10.60.0.2"));
        assert_eq!(deploy(&mut model, "cart"), ipv4("10.60.0.2"));
    }
    remove(&mut model, "web");
    assert_eq!(address_of(&model, "cart"), ipv4("10.60.0.2"));
    remove(&mut model, "cart");
    assert_eq!(address_of(&model, "cart"), None);
    assert_sound(&model);
}

#[test]
fn the_last_of_two_callers_releases_the_address() {
    let mut model = ControllerModel::default();
    deploy_caller(&mut model, "web", "cart");
    // Both ways to name it count once.
    deploy_caller(&mut model, "shop", "cart, basket=cart");
    let address = address_of(&model, "cart");
    remove(&mut model, "web");
    assert_eq!(address_of(&model, "cart"), address);
    remove(&mut model, "shop");
    assert_eq!(address_of(&model, "cart"), None);
    deploy_caller(&mut model, "web", "cart");
    assert_ne!(address_of(&model, "cart"), address, "reused last");
}

#[test]
fn a_caller_that_drops_a_callee_releases_its_address() {
    let mut model = ControllerModel::default();
    deploy_caller(&mut model, "web", "cart,user");
    let user = address_of(&model, "user");
    let update = ControllerCommand::Update(caller_spec("web", "user,mail"));
    run_command(&mut model, update).unwrap();
    assert_eq!(address_of(&model, "cart"), None);
    assert_eq!(address_of(&model, "user"), user);
    assert_eq!(address_of(&model, "mail"), ipv4("10.60.0.5"));
    assert_sound(&model);
}

#[test]
fn a_function_that_calls_itself_needs_one_address() {
    let mut model = ControllerModel::default();
    deploy_caller(&mut model, "tree", "tree");
    assert_eq!(address_of(&model, "tree"), ipv4("10.60.0.2"));
    deploy_caller(&mut model, "tree", "");
    assert_eq!(address_of(&model, "tree"), ipv4("10.60.0.2"));
    deploy_caller(&mut model, "tree", "tree");
    remove(&mut model, "tree");
    assert_eq!(address_of(&model, "tree"), None);
    assert_sound(&model);
}

#[test]
fn a_declared_state_gives_callees_their_addresses() {
    let mut model = ControllerModel::default();
    let specs = || [caller_spec("shop", "cart"), test_spec("web")];
    apply_specs(&mut model, specs());
    let cart = address_of(&model, "cart");
    assert_eq!(cart, ipv4("10.60.0.2"));
    let again = apply_specs(&mut model, specs());
    assert_eq!(again, CommandDecision::unchanged());
    // The name only moves from one caller to another, which comes later.
    apply_specs(&mut model, [test_spec("shop"), caller_spec("web", "cart")]);
    assert_eq!(address_of(&model, "cart"), cart);
    apply_specs(&mut model, [caller_spec("web", "cart"), test_spec("cart")]);
    assert_eq!(address_of(&model, "cart"), cart);
    apply_specs(&mut model, [test_spec("web")]);
    assert_eq!(address_of(&model, "cart"), None);
}

#[test]
fn a_deployment_changes_only_the_names_that_it_needs() {
    let mut model = ControllerModel::default();
    for name in ["a", "b", "c"] {
        deploy_caller(&mut model, name, "cart");
    }
    let deploy = ControllerCommand::Deploy(caller_spec("web", "b,cart,mail"));
    let decision = decide_command(&model, &deploy, at_seconds(1)).unwrap();
    let drawn = decision.changes.iter().filter_map(|change| match change {
        ModelChange::PutAddress(id, _) => Some(id.name.as_str()),
        _ => None,
    });
    assert!(drawn.eq(["mail", "web"]));
    assert_eq!(decision.changes.len(), 5, "revision, function and last");
}

#[test]
fn callees_without_an_address_are_named_with_their_caller() {
    let mut model = model_with_free(&[900]);
    let deploy = ControllerCommand::Deploy(caller_spec("web", "cart,user"));
    let decision = decide_command(&model, &deploy, at_seconds(1)).unwrap();
    let without = decision.without_address.iter().map(ToString::to_string);
    assert!(without.eq(["user.openfaas-fn", "web.openfaas-fn"]));
    let outcome = run_command(&mut model, deploy);
    assert_eq!(outcome, Ok(CommandOutcome::Created));
    assert_eq!(address_of(&model, "cart"), ipv4("10.60.3.132"));
    let scale = ControllerCommand::Scale("web".parse().unwrap(), 2);
    let scaled = decide_command(&model, &scale, at_seconds(1)).unwrap();
    assert!(scaled.without_address.is_empty(), "logged once");
}

#[test]
fn a_removal_only_removes_so_a_full_disk_permits_it() {
    let mut model = ControllerModel::default();
    deploy_caller(&mut model, "web", "cart");
    let remove = ControllerCommand::Remove("web".parse().unwrap());
    let decision = decide_command(&model, &remove, at_seconds(1)).unwrap();
    assert_eq!(decision.changes.len(), 3, "a function and two addresses");
    assert!(decision.changes.iter().all(ModelChange::is_removal));
}

#[test]
fn a_function_with_invalid_settings_declares_no_callees() {
    let mut model = ControllerModel::default();
    deploy_caller(&mut model, "web", "cart");
    let web: FunctionId = "web".parse().unwrap();
    let mut invalid = model.functions[&web].clone();
    let spec = Arc::make_mut(&mut invalid.spec);
    spec.annotations
        .insert("nearpath.io/queue".into(), "-1".into());
    model.apply_change(ModelChange::PutFunction(invalid));
    // As a newer version does that reads the same settings in another way.
    let prefix = AddressPrefix::from_random([1; 5]);
    let decision = complete_addresses(&model, prefix);
    let cart = ModelChange::DropAddress("cart".parse().unwrap());
    assert_eq!(decision.changes, [ModelChange::AddressPrefix(prefix), cart]);
    let changes = decision.changes.into_iter();
    changes.for_each(|change| model.apply_change(change));
    deploy_caller(&mut model, "web", "cart");
    assert_eq!(address_of(&model, "cart"), ipv4("10.60.0.4"));
}

#[test]
fn callees_of_an_older_version_get_addresses_in_order() {
    let mut model = ControllerModel::default();
    deploy_caller(&mut model, "web", "cart,zoo");
    for name in ["cart", "web", "zoo"] {
        model.apply_change(ModelChange::DropAddress(name.parse().unwrap()));
    }
    let decision = complete_addresses(&model, AddressPrefix::from_random([1; 5]));
    let changes = decision.changes.into_iter();
    changes.for_each(|change| model.apply_change(change));
    let last_byte = |name| address_of(&model, name).unwrap().octets()[3];
    assert_eq!(["cart", "web", "zoo"].map(last_byte), [5, 6, 7]);
}

#[test]
fn addresses_share_the_texts_of_names_with_functions() {
    let mut model = ControllerModel::default();
    model.apply_change(ModelChange::AddressPrefix(AddressPrefix::from_random(
        [1; 5],
    )));
    apply_specs(&mut model, [caller_spec("a", "web"), test_spec("web")]);
    let desired = model.desired_state();
    for (function, (named, _)) in desired.functions.values().zip(desired.addresses.iter()) {
        let (one, other) = (function.spec.service.as_str(), named.name.as_str());
        assert_eq!(one.as_ptr(), other.as_ptr(), "{named}");
    }
}
