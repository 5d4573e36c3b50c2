//! Reads the ConfigMap `kube-system/amazon-vpc-cni`, and finds out whether another controller assigns the addresses of
//! Windows pods.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, runtime::watcher};
use mullion_engine::ip::{Settings, Unreadable};

use super::lease::{self, LeaseState};
use crate::{Change, Context, Informer};

pub(super) const NAMESPACE: &str = "kube-system";
const CONFIG_MAP: &str = "amazon-vpc-cni";
/// A Deployment of this name assigns the addresses itself (VRC: `IsWindowsIPAMEnabled`).
const LEGACY_DEPLOYMENT: &str = "vpc-resource-controller";

/// Whether this controller assigns addresses when the ConfigMap enables them for Windows pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Assigns addresses unless AWS's controller does, that is, while no one holds and renews the Lease
    /// `kube-system/cp-vpc-resource-controller`.
    #[default]
    Auto,
    /// Assigns addresses whatever the Lease says.
    On,
    /// Never assigns addresses; only watches.
    Off,
}

/// The objects that enable and disable the controller.
pub(super) struct FeatureSwitches {
    mode: Mode,
    config_map: Informer<ConfigMap>,
    /// The state of the Lease when it was last read.
    lease_state: LeaseState,
    context: Context,
}

/// The settings that are in effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EffectiveSettings {
    pub(super) settings: Settings,
    /// Values that could not be parsed.
    pub(super) unreadable: Vec<Unreadable>,
}

impl FeatureSwitches {
    /// Starts the watches. `changed` is called after every change, `renewed` after a change of the Lease if the mode depends
    /// on it.
    pub(super) fn watch(
        context: &Context,
        mode: Mode,
        changed: impl Fn() + Clone + Send + Sync + 'static,
        renewed: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let api = Api::<ConfigMap>::namespaced(context.client.clone(), NAMESPACE);
        let config = watcher::Config::default().fields(&format!("metadata.name={CONFIG_MAP}"));
        let (tasks, shutdown) = (context.tasks.clone(), context.shutdown.clone());
        let config_map = Informer::with_config(api, config, |_| {}, &[], tasks, shutdown);
        config_map.on_change({
            let changed = changed.clone();
            move |_: &Change<'_, ConfigMap>| changed()
        });
        // The other modes ignore the Lease, so they need no watch of all leases.
        if mode == Mode::Auto {
            context.informers.leases.on_change(move |change| {
                if lease::is_of_aws_controller(change.object()) {
                    renewed();
                }
            });
        }
        context.informers.deployments.on_change(move |change| {
            let meta = &change.object().metadata;
            if meta.name.as_deref() == Some(LEGACY_DEPLOYMENT)
                && meta.namespace.as_deref() == Some(NAMESPACE)
            {
                changed();
            }
        });
        let context = context.clone();
        FeatureSwitches {
            mode,
            config_map,
            lease_state: LeaseState::default(),
            context,
        }
    }

    /// Reads the Lease, if the mode depends on it. Returns whether [`FeatureSwitches::others`] may have changed, and when to read
    /// the Lease again even if it does not change.
    pub(super) fn look_at_lease(&mut self, now: Timestamp) -> (bool, Option<Timestamp>) {
        if self.mode != Mode::Auto {
            return (false, None);
        }
        let lease = self.context.informers.leases.get(NAMESPACE, lease::NAME);
        self.lease_state.update(lease.as_deref(), now)
    }

    /// Waits until the objects are known; returns `false` on shutdown.
    pub(super) async fn synced(&self) -> bool {
        let informers = &self.context.informers;
        let known = self.config_map.synced().await && informers.deployments.synced().await;
        known && (self.mode != Mode::Auto || informers.leases.synced().await)
    }

    /// Returns which other controller assigns the addresses in place of this one; `None` if there is no other.
    pub(super) fn others(&self) -> Option<&'static str> {
        let informers = &self.context.informers;
        // VRC in the data plane leaves Windows addresses to this Deployment whatever else is configured.
        if informers
            .deployments
            .get(NAMESPACE, LEGACY_DEPLOYMENT)
            .is_some()
        {
            return Some("the Deployment kube-system/vpc-resource-controller");
        }
        match self.mode {
            Mode::Off => Some("another controller, by --ipam=off"),
            Mode::Auto if self.lease_state.is_held() => {
                Some("the holder of the Lease kube-system/cp-vpc-resource-controller")
            }
            Mode::Auto | Mode::On => None,
        }
    }

    /// Returns the ConfigMap, if it exists.
    pub(super) fn config_map(&self) -> Option<Arc<ConfigMap>> {
        self.config_map.get(NAMESPACE, CONFIG_MAP)
    }

    /// Reads the ConfigMap. If another controller assigns addresses, `windows_ipam` is off whatever the ConfigMap says.
    pub(super) fn read(&self) -> EffectiveSettings {
        let config_map = self.config_map();
        let data = config_map.as_ref().and_then(|map| map.data.as_ref());
        let none = BTreeMap::new();
        let (mut settings, unreadable) = Settings::read(data.unwrap_or(&none));
        if self.others().is_some() {
            settings.windows_ipam = false;
        }
        EffectiveSettings {
            settings,
            unreadable,
        }
    }
}
