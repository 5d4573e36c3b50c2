//! The facts about images from registries and nodes, for the rule that places pods by their images ([`Facts`]).
//!
//! The rule never waits: its caller asks the registries first ([`ImageFacts::fetch`]).

use std::{
    cell::LazyCell,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use mullion_controllers::{
    admission::{
        ClusterReader,
        placement::{Facts, Taint, taints},
    },
    image_gate::RegistryRetry,
};
use mullion_engine::images::{ImageRef, Runs};
use mullion_images::{ImageLookup, Keyring, Registries};
use serde_json::Value;
use tokio::time::Instant;

/// The time for which the taints of Windows nodes are cached: examining all nodes for every pod would take too long.
const TAINTS_HOLD: Duration = Duration::from_secs(1);
/// The most images of a pod that are looked up.
const MOST_IMAGES: usize = 64;

/// The facts from registries and nodes.
pub(crate) struct ImageFacts {
    registries: Arc<Registries>,
    taints: Mutex<Option<(Instant, Vec<Taint>)>>,
}

impl ImageFacts {
    /// Creates the facts with these registries.
    pub(crate) fn new(registries: Arc<Registries>) -> Self {
        ImageFacts {
            registries,
            taints: Mutex::default(),
        }
    }
}

impl ImageFacts {
    /// Returns the images of a pod whose registries may be asked.
    pub(crate) fn permitted(&self, mut images: Vec<ImageRef>) -> Vec<ImageRef> {
        images.retain(|image| self.registries.permits(image));
        images.truncate(MOST_IMAGES);
        images
    }

    /// Asks the registries about images without a known answer, with these pull secrets, and waits for at most a second.
    pub(crate) async fn fetch(&self, images: Vec<ImageRef>, secrets: &[Arc<Value>]) {
        let keyring = Keyring::of(secrets);
        join_all(
            images
                .iter()
                .map(|image| self.registries.fetch(image, &keyring)),
        )
        .await;
    }
}

impl Facts for ImageFacts {
    fn in_registries(
        &self,
        images: &[Option<ImageRef>],
        secrets: &dyn Fn() -> Vec<Arc<Value>>,
    ) -> Vec<Option<Runs>> {
        let keyring = LazyCell::new(|| Keyring::of(&secrets()));
        let images = images.iter().map(|image| {
            let image = image
                .as_ref()
                .filter(|image| self.registries.permits(image))?;
            match self.registries.cached(image, &keyring) {
                ImageLookup::Content(content) => content.runs(),
                ImageLookup::Failed(_) | ImageLookup::NotAsked | ImageLookup::NotPermitted => None,
            }
        });
        images.collect()
    }

    fn may_be_learnt(&self, images: &[ImageRef], secrets: &dyn Fn() -> Vec<Arc<Value>>) -> bool {
        let keyring = LazyCell::new(|| Keyring::of(&secrets()));
        images
            .iter()
            .filter(|image| self.registries.permits(image))
            .any(|image| match self.registries.cached(image, &keyring) {
                ImageLookup::NotAsked => true,
                ImageLookup::Failed(error) => !error.is_final(),
                ImageLookup::Content(_) | ImageLookup::NotPermitted => false,
            })
    }

    fn windows_taints(&self, cluster: &dyn ClusterReader) -> Vec<Taint> {
        let now = Instant::now();
        let lock = || self.taints.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, taints)) = &*lock()
            && now < *at + TAINTS_HOLD
        {
            return taints.clone();
        }
        // The lock is not held during the lookup, so that other pods need not wait for it.
        let taints = taints::common(cluster);
        if cluster.is_complete() {
            *lock() = Some((now, taints.clone()));
        }
        taints
    }
}

impl RegistryRetry for ImageFacts {
    fn retry_lookups(&self, images: &[ImageRef], secrets: &[Arc<Value>]) {
        let keyring = Keyring::of(secrets);
        for image in images.iter().take(MOST_IMAGES) {
            self.registries.ask_again(image, &keyring);
        }
    }
}

#[cfg(test)]
mod tests {
    use mullion_controllers::admission::{Access, Permission, ServiceAccount};
    use mullion_images::{Settings, SystemDial};
    use serde_json::json;

    use super::*;

    /// A cluster whose only NodePool buys tainted Windows nodes; its list of pools may not be loaded yet.
    struct Cluster {
        is_read: bool,
    }

    impl ClusterReader for Cluster {
        fn find(&self, _: &str, _: &str, _: Option<&str>, _: &str) -> Option<Arc<Value>> {
            None
        }

        fn list(&self, _: &str, plural: &str, _: Option<&str>) -> Vec<Arc<Value>> {
            let pool = json!({"spec": {"template": {"spec": {
                "taints": [{"key": "team", "value": "win", "effect": "NoSchedule"}],
                "requirements": [{"key": "kubernetes.io/os", "operator": "In", "values": ["windows"]}],
            }}}});
            if self.is_read && plural == "nodepools" {
                vec![Arc::new(pool)]
            } else {
                Vec::new()
            }
        }

        fn may(&self, _: &ServiceAccount<'_>, _: &Access<'_>) -> Permission {
            Permission::default()
        }

        fn is_complete(&self) -> bool {
            self.is_read
        }
    }

    #[tokio::test(start_paused = true)]
    async fn taints_are_kept_only_when_all_pools_are_known() {
        let settings: Settings = "none".parse().expect("settings");
        let facts = ImageFacts::new(Registries::new(settings, Arc::new(SystemDial::default())));
        let key = |is_read| {
            let taints = facts.windows_taints(&Cluster { is_read });
            taints[0].key.clone()
        };
        assert_eq!(key(false), "os");
        assert_eq!(key(true), "team");
        // Taints that are known are used for a second without another lookup.
        assert_eq!(key(false), "team");
    }
}
