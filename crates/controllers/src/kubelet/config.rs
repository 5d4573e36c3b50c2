//! Finds the ConfigMaps, Secrets and claims that containers and volumes need, and the kubelet's messages if one is
//! missing.
//!
//! Pure: [`of_container`] and [`of_volume`] read a spec, [`References::objects`] lists the objects to look up, and
//! [`References::environment`] and [`References::payload`] check the [`FoundObjects`]. [`super::pod`] decides when lookups
//! happen and are repeated.
//!
//! Invariant: an optional object, or a missing key of one, never causes an error.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, KeyToPath, Volume};

/// An object in the pod's namespace that a pod refers to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Object {
    /// A ConfigMap by name.
    ConfigMap(String),
    /// A Secret by name.
    Secret(String),
    /// A PersistentVolumeClaim by name.
    Claim(String),
    /// A ResourceClaim by name.
    ResourceClaim(String),
}

/// Why an existing claim cannot be used yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimProblem {
    /// The claim is being deleted.
    BeingDeleted,
    /// The claim has no volume yet.
    NotBound,
    /// The claim's volume is not attached to the node yet.
    NotAttached,
    /// The claim's devices cannot be prepared for the pod; the text is the kubelet's message.
    NotPrepared(String),
}

/// What is missing for an environment or a volume, with the kubelet's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The ConfigMap does not exist.
    #[error("configmap \"{0}\" not found")]
    NoConfigMap(String),
    /// The Secret does not exist.
    #[error("secret \"{0}\" not found")]
    NoSecret(String),
    /// The PersistentVolumeClaim does not exist.
    #[error("failed to fetch PVC from API server: persistentvolumeclaims \"{0}\" not found")]
    NoClaim(String),
    /// The ResourceClaim does not exist.
    #[error("fetch ResourceClaim {0}: resourceclaims.resource.k8s.io \"{0}\" not found")]
    NoResourceClaim(String),
    /// The PersistentVolumeClaim is being deleted.
    #[error("PVC is being deleted")]
    ClaimBeingDeleted,
    /// The PersistentVolumeClaim has no volume.
    #[error("PVC is not bound")]
    ClaimNotBound,
    /// The devices of a ResourceClaim cannot be prepared ([`ClaimProblem::NotPrepared`]).
    #[error("{0}")]
    NotPrepared(String),
    /// An object lacks the key of an environment variable.
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    NoKey {
        /// The key.
        key: String,
        /// The kind of the object.
        kind: &'static str,
        /// The namespace of the object.
        namespace: String,
        /// The name of the object.
        name: String,
    },
    /// A ConfigMap lacks a key of a volume.
    #[error("references non-existent config key: {0}")]
    NoConfigKey(String),
    /// A Secret lacks a key of a volume.
    #[error("references non-existent secret key: {0}")]
    NoSecretKey(String),
    /// Several things are missing for a volume.
    #[error("[{}]", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Several(Vec<ConfigError>),
}

/// The contents of an object that exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectContents {
    /// Keys that an environment variable can be taken from.
    pub values: BTreeSet<String>,
    /// Keys of a ConfigMap's `binaryData`, which only volumes show.
    pub binary: BTreeSet<String>,
    /// Why a claim cannot be used; `None` if it can.
    pub problem: Option<ClaimProblem>,
}

/// The objects that were looked up and exist.
pub type FoundObjects = BTreeMap<Object, ObjectContents>;

/// The references of one container or one volume, in the order in which the kubelet resolves them.
#[derive(Debug, Default)]
pub struct References<'a>(Vec<Reference<'a>>);

#[derive(Debug)]
struct Reference<'a> {
    object: Object,
    /// Keys that must exist; empty if the object is used as a whole.
    keys: Vec<&'a str>,
    optional: bool,
}

/// Returns the references of a container's environment.
pub fn of_container(container: &Container) -> References<'_> {
    let mut uses = Vec::new();
    for from in container.env_from.iter().flatten() {
        if let Some(map) = &from.config_map_ref {
            uses.push(Reference::whole(
                Object::ConfigMap(map.name.clone()),
                map.optional,
            ));
        } else if let Some(secret) = &from.secret_ref {
            uses.push(Reference::whole(
                Object::Secret(secret.name.clone()),
                secret.optional,
            ));
        }
    }
    for source in container
        .env
        .iter()
        .flatten()
        .filter_map(|var| var.value_from.as_ref())
    {
        if let Some(map) = &source.config_map_key_ref {
            uses.push(Reference {
                object: Object::ConfigMap(map.name.clone()),
                keys: vec![&map.key],
                optional: map.optional == Some(true),
            });
        } else if let Some(secret) = &source.secret_key_ref {
            uses.push(Reference {
                object: Object::Secret(secret.name.clone()),
                keys: vec![&secret.key],
                optional: secret.optional == Some(true),
            });
        }
    }
    References(uses)
}

/// Returns the PersistentVolumeClaim of a volume of `pod`: the one it names, or the one made for an ephemeral
/// volume.
pub fn claim_of(volume: &Volume, pod: &str) -> Option<String> {
    match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => Some(source.claim_name.clone()),
        (None, Some(_)) => Some(format!("{pod}-{}", volume.name)),
        (None, None) => None,
    }
}

/// Returns the references of a volume of `pod`.
pub fn of_volume<'a>(volume: &'a Volume, pod: &str) -> References<'a> {
    let mut uses = Vec::new();
    if let Some(claim) = claim_of(volume, pod) {
        uses.push(Reference::whole(Object::Claim(claim), None));
    }
    if let Some(secret) = &volume.secret {
        let name = secret.secret_name.clone().unwrap_or_default();
        uses.push(Reference::items(
            Object::Secret(name),
            &secret.items,
            secret.optional,
        ));
    }
    if let Some(map) = &volume.config_map {
        uses.push(Reference::items(
            Object::ConfigMap(map.name.clone()),
            &map.items,
            map.optional,
        ));
    }
    let projected = volume.projected.iter();
    for source in projected.flat_map(|projected| projected.sources.iter().flatten()) {
        if let Some(secret) = &source.secret {
            let object = Object::Secret(secret.name.clone());
            uses.push(Reference::items(object, &secret.items, secret.optional));
        } else if let Some(map) = &source.config_map {
            let object = Object::ConfigMap(map.name.clone());
            uses.push(Reference::items(object, &map.items, map.optional));
        }
    }
    References(uses)
}

/// Returns the reference to a ResourceClaim.
pub fn of_devices(claim: &str) -> References<'static> {
    References(vec![Reference::whole(
        Object::ResourceClaim(claim.to_owned()),
        None,
    )])
}

impl References<'_> {
    /// Returns whether there is nothing to look up.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the objects to look up, each once.
    pub fn objects(&self) -> BTreeSet<Object> {
        self.0.iter().map(|one| one.object.clone()).collect()
    }

    /// Returns whether a claim's volume is still being attached to the node.
    pub fn is_attaching(&self, found: &FoundObjects) -> bool {
        self.0.iter().any(|one| {
            let keys = found.get(&one.object);
            keys.is_some_and(|keys| keys.problem == Some(ClaimProblem::NotAttached))
        })
    }

    /// Checks that an environment can be built from the objects.
    ///
    /// # Errors
    /// Returns the first object or key that is missing.
    pub fn environment(&self, namespace: &str, found: &FoundObjects) -> Result<(), ConfigError> {
        for one in &self.0 {
            one.check(
                found,
                |key| {
                    let (kind, name) = match &one.object {
                        Object::ConfigMap(name) => ("ConfigMap", name),
                        Object::Secret(name) => ("Secret", name),
                        Object::Claim(name) => ("PersistentVolumeClaim", name),
                        Object::ResourceClaim(name) => ("ResourceClaim", name),
                    };
                    ConfigError::NoKey {
                        key: key.to_owned(),
                        kind,
                        namespace: namespace.to_owned(),
                        name: name.clone(),
                    }
                },
                |keys, key| keys.values.contains(key),
            )?;
        }
        Ok(())
    }

    /// Checks that a volume can be filled from the objects.
    ///
    /// # Errors
    /// Returns everything that is missing.
    pub fn payload(&self, found: &FoundObjects) -> Result<(), ConfigError> {
        let mut missing: Vec<ConfigError> = Vec::new();
        for one in &self.0 {
            let lacks = |key: &str| match one.object {
                Object::Secret(_) => ConfigError::NoSecretKey(key.to_owned()),
                // Claims have no keys.
                Object::ConfigMap(_) | Object::Claim(_) | Object::ResourceClaim(_) => {
                    ConfigError::NoConfigKey(key.to_owned())
                }
            };
            let has = |keys: &ObjectContents, key: &str| {
                keys.values.contains(key) || keys.binary.contains(key)
            };
            if let Err(error) = one.check(found, lacks, has)
                && !missing.contains(&error)
            {
                missing.push(error);
            }
        }
        match (missing.len(), missing.pop()) {
            (_, None) => Ok(()),
            (1, Some(only)) => Err(only),
            (_, Some(last)) => {
                missing.push(last);
                Err(ConfigError::Several(missing))
            }
        }
    }
}

impl<'a> Reference<'a> {
    fn whole(object: Object, optional: Option<bool>) -> Self {
        Self {
            object,
            keys: Vec::new(),
            optional: optional == Some(true),
        }
    }

    fn items(object: Object, items: &'a Option<Vec<KeyToPath>>, optional: Option<bool>) -> Self {
        Self {
            keys: items
                .iter()
                .flatten()
                .map(|item| item.key.as_str())
                .collect(),
            ..Self::whole(object, optional)
        }
    }

    fn check(
        &self,
        found: &FoundObjects,
        lacks: impl Fn(&str) -> ConfigError,
        has: impl Fn(&ObjectContents, &str) -> bool,
    ) -> Result<(), ConfigError> {
        // An optional object that exists may still lack a key, which is skipped as well.
        if self.optional {
            return Ok(());
        }
        let keys = found.get(&self.object).ok_or_else(|| match &self.object {
            Object::ConfigMap(name) => ConfigError::NoConfigMap(name.clone()),
            Object::Secret(name) => ConfigError::NoSecret(name.clone()),
            Object::Claim(name) => ConfigError::NoClaim(name.clone()),
            Object::ResourceClaim(name) => ConfigError::NoResourceClaim(name.clone()),
        })?;
        match &keys.problem {
            Some(ClaimProblem::BeingDeleted) => return Err(ConfigError::ClaimBeingDeleted),
            Some(ClaimProblem::NotBound) => return Err(ConfigError::ClaimNotBound),
            Some(ClaimProblem::NotPrepared(why)) => {
                return Err(ConfigError::NotPrepared(why.clone()));
            }
            // Callers check [`References::is_attaching`] first, because waiting for an attachment is not an error.
            Some(ClaimProblem::NotAttached) | None => {}
        }
        match self.keys.iter().find(|key| !has(keys, key)) {
            Some(key) => Err(lacks(key)),
            None => Ok(()),
        }
    }
}
