//! Deployment of a function. The JSON shape is OpenFaaS's `FunctionDeployment`, so its clients work
//! unchanged.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::egress;
use crate::name::{FunctionId, FunctionName, Namespace};
use crate::policy::EGRESS;

/// Limits or requests of one instance, as text (`128Mi`, `500m`); see [`crate::quantity`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceResources {
    /// Memory of one instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// CPU of one instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Processes and threads of one instance (nearpath's addition).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
}

/// A function as deployed. Unknown JSON fields are ignored, as OpenFaaS does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FunctionSpec {
    /// The function's name.
    pub service: FunctionName,
    /// Code to run: `file:///ABSOLUTE/FOLDER` is a folder on this machine; other references need an
    /// image store.
    #[serde(default)]
    pub image: String,
    /// Namespace of the function.
    #[serde(default, deserialize_with = "empty_is_default")]
    pub namespace: Namespace,
    /// The command that the watchdog starts; overrides `fprocess` in `env_vars`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub env_process: String,
    /// Environment of the watchdog and of the tenant's code.
    #[serde(default, deserialize_with = "null_is_default")]
    pub env_vars: BTreeMap<String, String>,
    /// Placement constraints; kept and shown, used by Kubernetes only.
    #[serde(default, deserialize_with = "null_is_default")]
    pub constraints: Vec<String>,
    /// Secrets mounted at `/var/openfaas/secrets/NAME`.
    #[serde(default, deserialize_with = "null_is_default")]
    pub secrets: Vec<String>,
    /// Labels: scaling settings, and those that the tenant adds.
    #[serde(default, deserialize_with = "null_is_default")]
    pub labels: BTreeMap<String, String>,
    /// Annotations: nearpath's own settings are here, see [`crate::policy`].
    #[serde(default, deserialize_with = "null_is_default")]
    pub annotations: BTreeMap<String, String>,
    /// Hard limits of one instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<InstanceResources>,
    /// Expected use of one instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<InstanceResources>,
    /// Makes the instance's root read-only apart from `/tmp`.
    #[serde(default)]
    pub read_only_root_filesystem: bool,
}

impl FunctionSpec {
    /// Creates an otherwise empty spec, for tests and builders.
    pub fn named(service: FunctionName) -> Self {
        Self {
            service,
            image: String::new(),
            namespace: Namespace::default(),
            env_process: String::new(),
            env_vars: BTreeMap::new(),
            constraints: Vec::new(),
            secrets: Vec::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            limits: None,
            requests: None,
            read_only_root_filesystem: false,
        }
    }

    /// Returns the function's identity.
    pub fn id(&self) -> FunctionId {
        FunctionId {
            name: self.service.clone(),
            namespace: self.namespace.clone(),
        }
    }

    /// Returns the names of all secrets that it needs: those that its code reads, and those with
    /// which the node reaches destinations for it. Each once, in the order in which they are
    /// written.
    pub fn needed_secrets(&self) -> Vec<String> {
        let declared = self
            .annotations
            .get(EGRESS)
            .and_then(|text| egress::parse_list(text).ok())
            .unwrap_or_default(); // reported with the policy
        let all = self
            .secrets
            .iter()
            .map(String::as_str)
            .chain(declared.iter().flat_map(egress::EgressSpec::secret_names));
        // Beside the list, so that the order of the text is kept.
        let mut seen = BTreeSet::new();
        all.filter(|name| seen.insert(*name))
            .map(str::to_owned)
            .collect()
    }
}

fn empty_is_default<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Namespace, D::Error> {
    // Clients write an empty namespace for the default one.
    match Option::<String>::deserialize(from)?.as_deref() {
        None | Some("") => Ok(Namespace::default()),
        Some(text) => text.parse().map_err(serde::de::Error::custom),
    }
}

/// Go clients write `null` for an empty map or list.
fn null_is_default<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_go_clients_body_is_read() {
        let body = r#"{"service":"echo","image":"file:///srv/echo","envVars":null,"labels":{"a":"b"},"annotations":{},"limits":{"memory":"128Mi"},"unknown":1}"#;
        let spec: FunctionSpec = serde_json::from_str(body).unwrap();
        assert_eq!(spec.id().to_string(), "echo.openfaas-fn");
        assert_eq!(spec.limits.unwrap().memory.as_deref(), Some("128Mi"));
    }

    #[test]
    fn an_invalid_name_is_refused() {
        let error = serde_json::from_str::<FunctionSpec>(r#"{"service":"Echo_1"}"#).unwrap_err();
        assert!(error.to_string().contains("Echo_1"), "{error}");
    }

    #[test]
    fn secrets_of_destinations_are_needed_too() {
        let mut spec = FunctionSpec::named("echo".parse().unwrap());
        spec.secrets = vec!["own".into()];
        let text = "db:5432 user=shop password=secret:door, x:443 tls=originate ca=secret:ca, y:5432 user=a password=secret:own";
        spec.annotations.insert(EGRESS.into(), text.into());
        assert_eq!(spec.needed_secrets(), ["own", "door", "ca"]);
        spec.annotations.insert(EGRESS.into(), "nonsense".into());
        assert_eq!(spec.needed_secrets().len(), 1);
    }
}
