//! Virtual addresses: unique, kept, reused last.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::address_pool::AddressPool;
use super::declared_tests::{any_state, state_of};
use super::tests::{
    any_command, assert_sound, at_seconds, needed_names, run_command, secret_value, test_spec,
};
use super::*;

const LAST_NUMBER: u16 = u16::MAX - 1;
/// Numbers 2 to 65,534.
const TOTAL_NUMBERS: usize = 65_533;

fn number(number: u16) -> AddressNumber {
    AddressNumber::try_from(number).unwrap()
}

pub(super) fn deploy(model: &mut ControllerModel, name: &str) -> Option<Ipv4Addr> {
    run_command(model, ControllerCommand::Deploy(test_spec(name))).unwrap();
    address_of(model, name)
}

pub(super) fn remove(model: &mut ControllerModel, name: &str) {
    run_command(model, ControllerCommand::Remove(name.parse().unwrap())).unwrap();
}

pub(super) fn address_of(model: &ControllerModel, name: &str) -> Option<Ipv4Addr> {
    let number = model.address_number(&name.parse().unwrap());
    number.map(AddressNumber::ipv4)
}

pub(super) fn ipv4(text: &str) -> Option<Ipv4Addr> {
    Some(text.parse().unwrap())
}

/// A model in which all numbers but these are in use.
pub(super) fn model_with_free(free: &[u16]) -> ControllerModel {
    let mut model = ControllerModel::default();
    for used in (2..=LAST_NUMBER).filter(|used| !free.contains(used)) {
        model.addresses.pool.replace(None, Some(number(used)));
    }
    model
}

#[test]
fn every_number_is_allocated_once_before_any_again() {
    let mut pool = AddressPool::default();
    let mut numbers = Vec::new();
    while let Some(allocated) = pool.allocate() {
        numbers.push(u16::from(allocated));
    }
    assert_eq!(numbers.len(), TOTAL_NUMBERS);
    assert!(numbers.into_iter().eq(2..=LAST_NUMBER));
    pool.replace(Some(number(700)), None);
    assert_eq!(pool.allocate(), Some(number(700)));
}

#[test]
fn a_released_address_is_reused_last() {
    let mut model = ControllerModel::default();
    assert_eq!(deploy(&mut model, "a"), ipv4("10.60.0.2"));
    assert_eq!(deploy(&mut model, "b"), ipv4("10.60.0.3"));
    remove(&mut model, "a");
    assert_eq!(deploy(&mut model, "a"), ipv4("10.60.0.4"));
    remove(&mut model, "a");
    remove(&mut model, "b");
    assert_eq!(deploy(&mut model, "b"), ipv4("10.60.0.5"));
    model.apply_change(ModelChange::LastAddress(number(LAST_NUMBER - 1)));
    assert_eq!(deploy(&mut model, "c"), ipv4("10.60.255.254"));
    assert_eq!(deploy(&mut model, "d"), ipv4("10.60.0.2"));
}

#[test]
fn a_function_keeps_its_address_until_it_is_removed() {
    let mut model = ControllerModel::default();
    let key: SecretId = "openfaas-fn/key".parse().unwrap();
    let id: FunctionId = "echo".parse().unwrap();
    let mut spec = test_spec("echo");
    spec.secrets = vec!["key".into()];
    let create = ControllerCommand::CreateSecret(key.clone(), secret_value("old"));
    run_command(&mut model, create).unwrap();
    deploy(&mut model, "other");
    let mut declared = state_of([spec.clone()]);
    declared.secrets = [(key.clone(), secret_value("last"))].into();
    for command in [
        ControllerCommand::Deploy(spec.clone()),
        ControllerCommand::Deploy(spec.clone()),
        ControllerCommand::Update(spec),
        ControllerCommand::Scale(id.clone(), 0),
        ControllerCommand::Wake(id),
        ControllerCommand::UpdateSecret(key, secret_value("new")),
        ControllerCommand::ApplyDeclared(Arc::new(declared)),
    ] {
        assert_eq!(run_command(&mut model, command.clone()).err(), None);
        let address = address_of(&model, "echo");
        assert_eq!(address, ipv4("10.60.0.3"), "{command:?}");
    }
}

#[test]
fn without_a_free_address_a_deployment_succeeds_and_says_so() {
    let mut model = model_with_free(&[900]);
    assert_eq!(deploy(&mut model, "a"), ipv4("10.60.3.132"));
    let decide = |model: &ControllerModel, command| {
        let decision = decide_command(model, &command, at_seconds(1)).unwrap();
        decision.without_address
    };
    let second = ControllerCommand::Deploy(test_spec("b"));
    let id: FunctionId = "b".parse().unwrap();
    assert_eq!(decide(&model, second.clone()), std::slice::from_ref(&id));
    let outcome = run_command(&mut model, second.clone());
    assert_eq!(outcome, Ok(CommandOutcome::Created));
    assert_eq!(address_of(&model, "b"), None);
    let scale = ControllerCommand::Scale(id, 2);
    assert!(decide(&model, scale).is_empty(), "logged once");
    remove(&mut model, "a");
    assert!(decide(&model, second).is_empty());
    assert_eq!(deploy(&mut model, "b"), ipv4("10.60.3.132"));
}

#[test]
fn a_declared_state_without_free_addresses_is_applied_once() {
    let mut model = model_with_free(&[900]);
    let state = Arc::new(state_of(["a", "b", "c"].map(test_spec)));
    let command = ControllerCommand::ApplyDeclared(state);
    let decision = decide_command(&model, &command, at_seconds(1)).unwrap();
    let without = decision.without_address.iter().map(ToString::to_string);
    assert!(without.eq(["b.openfaas-fn", "c.openfaas-fn"]));
    run_command(&mut model, command.clone()).unwrap();
    assert_eq!(address_of(&model, "a"), ipv4("10.60.3.132"));
    let again = decide_command(&model, &command, at_seconds(2)).unwrap();
    assert_eq!(again, CommandDecision::unchanged());
}

#[test]
fn functions_of_an_older_version_get_addresses_by_name() {
    let mut model = ControllerModel::default();
    for name in ["c", "a", "b"] {
        deploy(&mut model, name);
        if name != "b" {
            model.apply_change(ModelChange::DropAddress(name.parse().unwrap()));
        }
    }
    let prefix = AddressPrefix::from_random([1; 5]);
    let decision = complete_addresses(&model, prefix);
    assert!(decision.without_address.is_empty());
    let changes = decision.changes.into_iter();
    changes.for_each(|change| model.apply_change(change));
    let addresses = ["a", "b", "c"].map(|name| address_of(&model, name).unwrap().octets()[3]);
    assert_eq!(addresses, [5, 4, 6]);
    let other_prefix = AddressPrefix::from_random([2; 5]);
    let again = complete_addresses(&model, other_prefix);
    assert_eq!(again, CommandDecision::unchanged());
    assert_sound(&model);
}

#[test]
fn too_many_functions_of_an_older_version_are_named() {
    let mut model = model_with_free(&[]);
    deploy(&mut model, "a");
    let decision = complete_addresses(&model, AddressPrefix::from_random([1; 5]));
    assert_eq!(decision.without_address, ["a".parse().unwrap()]);
    assert_eq!(decision.changes.len(), 1, "the prefix");
}

#[test]
fn an_ipv6_address_has_the_prefix_and_ends_with_the_ipv4_address() {
    let prefix = AddressPrefix::from_random([0x12, 0x34, 0x56, 0x78, 0x9a]);
    let address = prefix.address(number(0x0307));
    assert_eq!(address.to_string(), "10.60.3.7 (fd12:3456:789a::a3c:307)");
    let mut model = ControllerModel::default();
    deploy(&mut model, "a");
    let desired = |model: &ControllerModel| {
        let desired = model.desired_state();
        desired
            .addresses
            .get(&"a".parse().unwrap())
            .map(|one| **one)
    };
    assert_eq!(desired(&model), None);
    model.apply_change(ModelChange::AddressPrefix(prefix));
    assert_eq!(desired(&model), Some(prefix.address(number(2))));
}

#[test]
fn reserved_numbers_and_other_prefixes_are_refused() {
    for reserved in [0, 1, u16::MAX] {
        AddressNumber::try_from(reserved).unwrap_err();
        serde_json::from_value::<AddressNumber>(reserved.into()).unwrap_err();
    }
    for other in ["fc00::", "fd00:1:2:3::", "fd00::1", "2001:db8::"] {
        let address: Ipv6Addr = other.parse().unwrap();
        AddressPrefix::try_from(address).unwrap_err();
    }
    let prefix = AddressPrefix::from_random([0xff; 5]);
    let json = serde_json::to_value(prefix).unwrap();
    assert_eq!(json, "fdff:ffff:ffff::");
    assert_eq!(
        serde_json::from_value::<AddressPrefix>(json).unwrap(),
        prefix
    );
}

/// The next free number, found by trying all.
fn expected_number(used: &BTreeSet<u16>, last: Option<u16>) -> u16 {
    let start = last.unwrap_or(1);
    let behind = start + 1..=LAST_NUMBER;
    let mut round = behind.chain(2..=start);
    round.find(|number| !used.contains(number)).unwrap()
}

fn any_change_of_functions() -> impl Strategy<Value = ControllerCommand> {
    prop_oneof![
        6 => any_command(),
        1 => any_state().prop_map(|state| ControllerCommand::ApplyDeclared(Arc::new(state))),
    ]
}

/// Addresses, found by looking at all functions after each command.
#[derive(Debug, Default, PartialEq)]
struct NaiveAddresses {
    numbers: BTreeMap<FunctionId, u16>,
    last: Option<u16>,
}

impl NaiveAddresses {
    fn of(model: &ControllerModel) -> Self {
        let numbers = model.addresses.numbers.iter();
        Self {
            numbers: numbers
                .map(|(id, one)| (id.clone(), (*one).into()))
                .collect(),
            last: model.addresses.pool.last().map(u16::from),
        }
    }

    fn follow(&mut self, needed: &BTreeMap<FunctionId, u32>) {
        let mut used: BTreeSet<_> = self.numbers.values().copied().collect();
        for id in needed.keys() {
            if !self.numbers.contains_key(id) {
                let number = expected_number(&used, self.last);
                used.insert(number);
                self.last = Some(number);
                self.numbers.insert(id.clone(), number);
            }
        }
        // Only now: a number that is released is not reused at once.
        self.numbers.retain(|id, _| needed.contains_key(id));
    }
}

proptest! {
    #[test]
    fn addresses_equal_those_of_a_naive_model(
        last in prop::option::of(prop_oneof![2..8u16, LAST_NUMBER - 4..=LAST_NUMBER]),
        commands in prop::collection::vec(any_change_of_functions(), 0..60),
    ) {
        let mut model = ControllerModel::default();
        let start = last.map(|last| ModelChange::LastAddress(number(last)));
        start.into_iter().for_each(|change| model.apply_change(change));
        let mut naive = NaiveAddresses { last, ..NaiveAddresses::default() };
        for command in commands {
            let _ = run_command(&mut model, command);
            naive.follow(&needed_names(&model));
            prop_assert_eq!(&NaiveAddresses::of(&model), &naive);
        }
    }

    #[test]
    fn while_few_numbers_are_free_names_keep_theirs_or_are_named(
        commands in prop::collection::vec(any_change_of_functions(), 0..40),
    ) {
        let mut model = model_with_free(&[7, 900, 901]);
        for command in commands {
            let (before, known) = (NaiveAddresses::of(&model).numbers, needed_names(&model));
            let Ok(decision) = decide_command(&model, &command, at_seconds(1)) else { continue };
            decision.changes.into_iter().for_each(|change| model.apply_change(change));
            let (after, needed) = (NaiveAddresses::of(&model).numbers, needed_names(&model));
            for (id, number) in &before {
                prop_assert_eq!(after.get(id), needed.contains_key(id).then_some(number));
            }
            let unique: BTreeSet<_> = after.values().collect();
            prop_assert_eq!(unique.len(), after.len());
            for id in needed.keys() {
                let is_named = decision.without_address.contains(id);
                prop_assert!(!is_named || !after.contains_key(id));
                prop_assert!(is_named || after.contains_key(id) || known.contains_key(id));
            }
        }
    }
}
