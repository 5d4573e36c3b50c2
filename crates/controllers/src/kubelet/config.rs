//! What containers and volumes take from ConfigMaps and Secrets, and what is said when it is not there.
//!
//! Pure: [`of_container`] and [`of_volume`] read a spec, [`Uses::objects`] names what has to be looked up, and
//! [`Uses::environment`] and [`Uses::payload`] judge what was [`Found`] in the kubelet's words. When questions are
//! asked, and when again, is decided in [`super::pod`].
//!
//! Invariant: what is optional never stands in the way, neither the object nor a key of it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, KeyToPath, Volume};

/// A ConfigMap, a Secret or a claim in the pod's namespace.
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

/// Why what a claim that exists stands for cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimTrouble {
    /// The claim is going.
    BeingDeleted,
    /// It has no volume yet.
    NotBound,
    /// Its volume is not attached to the node yet.
    NotAttached,
    /// The pod may not have its devices, in the kubelet's words.
    NotPrepared(String),
}

/// The keys of an object that exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// Keys that an environment variable can be taken from.
    pub values: BTreeSet<String>,
    /// Keys of a ConfigMap's `binaryData`, which only volumes show.
    pub binary: BTreeSet<String>,
    /// What is wrong with a claim.
    pub trouble: Option<ClaimTrouble>,
}

/// The objects that exist, of those that were looked up.
pub type Found = BTreeMap<Object, Keys>;

/// All that one container or one volume takes, in the order in which the kubelet goes through it.
#[derive(Debug, Default)]
pub struct Uses<'a>(Vec<Use<'a>>);

#[derive(Debug)]
struct Use<'a> {
    object: Object,
    /// Keys it cannot do without; none if it takes whatever there is.
    keys: Vec<&'a str>,
    optional: bool,
}

/// What a container's environment is made of.
pub fn of_container(container: &Container) -> Uses<'_> {
    let mut uses = Vec::new();
    for from in container.env_from.iter().flatten() {
        if let Some(map) = &from.config_map_ref {
            uses.push(Use::whole(
                Object::ConfigMap(map.name.clone()),
                map.optional,
            ));
        } else if let Some(secret) = &from.secret_ref {
            uses.push(Use::whole(
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
            uses.push(Use {
                object: Object::ConfigMap(map.name.clone()),
                keys: vec![&map.key],
                optional: map.optional == Some(true),
            });
        } else if let Some(secret) = &source.secret_key_ref {
            uses.push(Use {
                object: Object::Secret(secret.name.clone()),
                keys: vec![&secret.key],
                optional: secret.optional == Some(true),
            });
        }
    }
    Uses(uses)
}

/// The claim that a volume of `pod` is.
pub fn claim_of(volume: &Volume, pod: &str) -> Option<String> {
    match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => Some(source.claim_name.clone()),
        (None, Some(_)) => Some(format!("{pod}-{}", volume.name)),
        (None, None) => None,
    }
}

/// What a volume of `pod` shows.
pub fn of_volume<'a>(volume: &'a Volume, pod: &str) -> Uses<'a> {
    let mut uses = Vec::new();
    if let Some(claim) = claim_of(volume, pod) {
        uses.push(Use::whole(Object::Claim(claim), None));
    }
    if let Some(secret) = &volume.secret {
        let name = secret.secret_name.clone().unwrap_or_default();
        uses.push(Use::items(
            Object::Secret(name),
            &secret.items,
            secret.optional,
        ));
    }
    if let Some(map) = &volume.config_map {
        uses.push(Use::items(
            Object::ConfigMap(map.name.clone()),
            &map.items,
            map.optional,
        ));
    }
    let projected = volume.projected.iter();
    for source in projected.flat_map(|projected| projected.sources.iter().flatten()) {
        if let Some(secret) = &source.secret {
            let object = Object::Secret(secret.name.clone());
            uses.push(Use::items(object, &secret.items, secret.optional));
        } else if let Some(map) = &source.config_map {
            let object = Object::ConfigMap(map.name.clone());
            uses.push(Use::items(object, &map.items, map.optional));
        }
    }
    Uses(uses)
}

/// What the devices of a claim are had from.
pub fn of_devices(claim: &str) -> Uses<'static> {
    Uses(vec![Use::whole(
        Object::ResourceClaim(claim.to_owned()),
        None,
    )])
}

impl Uses<'_> {
    /// Nothing has to be looked up.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What has to be looked up, each object once.
    pub fn objects(&self) -> BTreeSet<Object> {
        self.0.iter().map(|one| one.object.clone()).collect()
    }

    /// Whether a claim's volume is still on its way to the node.
    pub fn is_attaching(&self, found: &Found) -> bool {
        self.0.iter().any(|one| {
            let keys = found.get(&one.object);
            keys.is_some_and(|keys| keys.trouble == Some(ClaimTrouble::NotAttached))
        })
    }

    /// Whether an environment can be made of it.
    ///
    /// # Errors
    /// With the kubelet's message about the first thing that is missing.
    pub fn environment(&self, namespace: &str, found: &Found) -> Result<(), String> {
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
                    format!("couldn't find key {key} in {kind} {namespace}/{name}")
                },
                |keys, key| keys.values.contains(key),
            )?;
        }
        Ok(())
    }

    /// Whether a volume can be filled from it.
    ///
    /// # Errors
    /// With the kubelet's message about all that is missing.
    pub fn payload(&self, found: &Found) -> Result<(), String> {
        let mut missing: Vec<String> = Vec::new();
        for one in &self.0 {
            let lacks = |key: &str| match one.object {
                Object::ConfigMap(_) => format!("references non-existent config key: {key}"),
                Object::Secret(_) => format!("references non-existent secret key: {key}"),
                Object::Claim(_) | Object::ResourceClaim(_) => String::new(),
            };
            let has =
                |keys: &Keys, key: &str| keys.values.contains(key) || keys.binary.contains(key);
            if let Err(message) = one.check(found, lacks, has)
                && !missing.contains(&message)
            {
                missing.push(message);
            }
        }
        match missing.as_mut_slice() {
            [] => Ok(()),
            [only] => Err(std::mem::take(only)),
            all => Err(format!("[{}]", all.join(", "))),
        }
    }
}

impl<'a> Use<'a> {
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
        found: &Found,
        lacks: impl Fn(&str) -> String,
        has: impl Fn(&Keys, &str) -> bool,
    ) -> Result<(), String> {
        if self.optional {
            return Ok(());
        }
        let keys = found.get(&self.object).ok_or_else(|| match &self.object {
            Object::ConfigMap(name) => format!("configmap \"{name}\" not found"),
            Object::Secret(name) => format!("secret \"{name}\" not found"),
            Object::Claim(name) => format!(
                "failed to fetch PVC from API server: persistentvolumeclaims \"{name}\" not found"
            ),
            Object::ResourceClaim(name) => {
                format!("fetch ResourceClaim {name}: resourceclaims.resource.k8s.io \"{name}\" not found")
            }
        })?;
        match &keys.trouble {
            Some(ClaimTrouble::BeingDeleted) => return Err("PVC is being deleted".to_owned()),
            Some(ClaimTrouble::NotBound) => return Err("PVC is not bound".to_owned()),
            Some(ClaimTrouble::NotPrepared(why)) => return Err(why.clone()),
            Some(ClaimTrouble::NotAttached) | None => {}
        }
        match self.keys.iter().find(|key| !has(keys, key)) {
            Some(key) => Err(lacks(key)),
            None => Ok(()),
        }
    }
}
