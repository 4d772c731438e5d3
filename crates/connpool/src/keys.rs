//! Keys of destinations, with their epochs: which functions share connections. Pure.

use std::collections::BTreeMap;

use nearpath_types::FunctionId;
use nearpath_types::egress::{EgressSpec, EgressTls, SharingScope};

use crate::destination::{PoolKey, namespace_of};

/// Maximum number of owners that are remembered while they have no instance.
const MAX_REMEMBERED_OWNERS: usize = 4_096;

/// Contents of secrets, by name.
pub type SecretContents = BTreeMap<String, Vec<u8>>;

/// A [`PoolKey`] without its epoch.
type KeyIdentity = (String, String, String);

/// Last declaration of each key.
#[derive(Debug, Default)]
pub struct KeyRegistry {
    declarations: BTreeMap<KeyIdentity, KeyDeclaration>,
    last_epoch: u64,
}

#[derive(Debug)]
struct KeyDeclaration {
    egress: EgressSpec,
    secrets: SecretContents,
    epoch: u64,
    users: u32,
}

impl KeyRegistry {
    /// Returns the key of a destination for one more instance. The key stays the same as long as
    /// settings and secrets do.
    pub fn acquire_key(
        &mut self,
        function: &FunctionId,
        chain: Option<&str>,
        egress: &EgressSpec,
        secrets: &SecretContents,
    ) -> PoolKey {
        let (owner, to, identity) = key_identity(function, chain, egress);
        self.forget_unused();
        let next = self.last_epoch + 1;
        let new_declaration = || KeyDeclaration {
            egress: egress.clone(),
            secrets: secrets.clone(),
            epoch: 0,
            users: 0,
        };
        let declared = self
            .declarations
            .entry((owner.clone(), to.clone(), identity.clone()))
            .or_insert_with(new_declaration);
        // Epoch 0 marks a new entry. Other settings or secrets start a new epoch, which hides older
        // connections.
        if declared.epoch == 0 || declared.egress != *egress || declared.secrets != *secrets {
            *declared = KeyDeclaration {
                epoch: next,
                users: declared.users,
                ..new_declaration()
            };
            self.last_epoch = next;
        }
        declared.users += 1;
        PoolKey {
            owner,
            host_port: to,
            identity,
            epoch: declared.epoch,
        }
    }

    /// Returns another owner in the namespace with a different `max` for the same destination, and
    /// its `max`.
    pub fn find_limit_conflict(&self, key: &PoolKey, egress: &EgressSpec) -> Option<(&str, u32)> {
        let other = |((owner, to, _), declared): &(&KeyIdentity, &KeyDeclaration)| {
            declared.users > 0
                && *to == key.host_port
                && *owner != key.owner
                && declared.egress.max != egress.max
        };
        let others = self.declarations.iter().filter(other);
        let mut beside = others.filter(|((owner, ..), _)| namespace_of(owner) == key.namespace());
        beside
            .next()
            .map(|((owner, ..), declared)| (owner.as_str(), declared.egress.max))
    }

    /// Removes one instance of a key.
    pub fn release_key(&mut self, key: &PoolKey) {
        let identity = (
            key.owner.clone(),
            key.host_port.clone(),
            key.identity.clone(),
        );
        if let Some(declared) = self.declarations.get_mut(&identity) {
            declared.users = declared.users.saturating_sub(1);
        }
    }

    fn forget_unused(&mut self) {
        // Keys in use stay, so the table may exceed the bound by the instances of the node.
        if self.declarations.len() >= MAX_REMEMBERED_OWNERS {
            self.declarations.retain(|_, declared| declared.users > 0);
        }
    }
}

fn key_identity(function: &FunctionId, chain: Option<&str>, egress: &EgressSpec) -> KeyIdentity {
    // A connection is logged in as one user to one database.
    let user = egress
        .login
        .as_ref()
        .map(|login| format!("{}@{}", login.user, login.database.as_deref().unwrap_or("")));
    let mut identity = user.unwrap_or_default();
    if let EgressTls::Originate { ca } = &egress.tls {
        identity.push_str(&format!(" tls {}", ca.as_deref().unwrap_or("")));
    }
    match (egress.shared, chain) {
        (SharingScope::Chain, Some(chain)) => {
            // Only functions with equal declarations share.
            identity.push_str(&format!(" {egress}"));
            (
                format!("{}/{chain}", function.namespace),
                egress.host_port(),
                identity,
            )
        }
        _ => (function.to_string(), egress.host_port(), identity),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function_id(name: &str) -> FunctionId {
        name.parse().unwrap()
    }

    fn egress(text: &str) -> EgressSpec {
        text.parse().unwrap()
    }

    fn secrets(content: &str) -> SecretContents {
        [("door".to_owned(), content.as_bytes().to_vec())].into()
    }

    #[test]
    fn a_change_of_settings_or_secrets_begins_an_epoch() {
        let mut keys = KeyRegistry::default();
        let mut key = |text: &str, content: &str| {
            keys.acquire_key(&function_id("f"), None, &egress(text), &secrets(content))
        };
        let first = key("db:5432 user=a", "old");
        assert_eq!(key("db:5432 user=a", "old"), first);
        let renewed = key("db:5432 user=a", "new");
        assert!(renewed.epoch > first.epoch);
        assert!(key("db:5432 user=a max=3", "new").epoch > renewed.epoch);
        assert_eq!(
            key("db:5433 protocol=postgres user=a", "new").host_port,
            "db:5433"
        );
    }

    #[test]
    fn functions_share_only_what_they_declare_alike_in_one_chain() {
        let mut keys = KeyRegistry::default();
        let mut key = |name, chain, text| {
            keys.acquire_key(
                &function_id(name),
                chain,
                &egress(text),
                &SecretContents::new(),
            )
        };
        let (a, b) = (
            key("a", Some("shop"), "db:5432 shared=chain"),
            key("b", Some("shop"), "db:5432 shared=chain"),
        );
        assert_eq!(a, b);
        assert_ne!(a, key("c", Some("shop"), "db:5432 shared=chain max=3"));
        assert_eq!(
            a,
            key("a", Some("shop"), "db:5432 shared=chain"),
            "another's settings do not end its epoch"
        );
        assert_ne!(
            a.owner,
            key("d", Some("other"), "db:5432 shared=chain").owner
        );
        assert_ne!(
            a.owner,
            key("a.elsewhere", Some("shop"), "db:5432 shared=chain").owner,
            "a chain is one of its namespace"
        );
        assert_ne!(
            key("a", Some("shop"), "db:5432").owner,
            key("b", Some("shop"), "db:5432").owner
        );
        assert_ne!(
            key("a", None, "x:1 shared=chain").owner,
            key("b", None, "x:1 shared=chain").owner,
            "no chain, nothing shared"
        );
    }

    #[test]
    fn different_logins_never_share_a_key() {
        let mut keys = KeyRegistry::default();
        let texts = [
            "db:5432",
            "db:5432 user=a",
            "db:5432 user=b",
            "db:5432 user=a database=x",
            "db:5432 tls=originate",
        ];
        let all: std::collections::BTreeSet<_> = texts
            .iter()
            .map(|text| {
                keys.acquire_key(
                    &function_id("f"),
                    None,
                    &egress(text),
                    &SecretContents::new(),
                )
                .identity
            })
            .collect();
        assert_eq!(all.len(), texts.len());
    }

    #[test]
    fn keys_without_instances_are_forgotten_above_the_bound() {
        let mut keys = KeyRegistry::default();
        let kept = keys.acquire_key(
            &function_id("kept"),
            None,
            &egress("db:1"),
            &SecretContents::new(),
        );
        for number in 0..MAX_REMEMBERED_OWNERS + 10 {
            let key = keys.acquire_key(
                &function_id(&format!("f{number}")),
                None,
                &egress("db:1"),
                &SecretContents::new(),
            );
            keys.release_key(&key);
        }
        assert!(keys.declarations.len() <= MAX_REMEMBERED_OWNERS);
        assert_eq!(
            keys.acquire_key(
                &function_id("kept"),
                None,
                &egress("db:1"),
                &SecretContents::new()
            ),
            kept
        );
    }
}
