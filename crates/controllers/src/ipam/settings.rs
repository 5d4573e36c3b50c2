//! What the ConfigMap `kube-system/amazon-vpc-cni` says, and whether another controller gives Windows pods their addresses.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, runtime::watcher};
use mullion_engine::ip::{Settings, Unreadable};

use super::lease::{self, Holding};
use crate::{Change, Context, Informer};

pub(super) const NAMESPACE: &str = "kube-system";
const CONFIG_MAP: &str = "amazon-vpc-cni";
/// A Deployment of this name gives Windows pods their addresses itself (VRC: `IsWindowsIPAMEnabled`).
const LEGACY_DEPLOYMENT: &str = "vpc-resource-controller";

/// Whether this controller gives addresses, where the ConfigMap wants Windows pods to have some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Unless upstream's controller does: somebody holds the Lease `kube-system/cp-vpc-resource-controller` and renews it.
    #[default]
    Auto,
    /// Whether somebody holds that Lease or not.
    On,
    /// Never: it only watches.
    Off,
}

/// The objects that switch the controller on and off.
pub(super) struct Switches {
    mode: Mode,
    config_map: Informer<ConfigMap>,
    /// Upstream's lease, as it was when it was last looked at.
    holding: Holding,
    context: Context,
}

/// What the switches say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) settings: Settings,
    /// Values that cannot be read, with the ConfigMap that has them.
    pub(super) unreadable: Vec<Unreadable>,
}

impl Switches {
    /// Starts the watches; `changed` is called after every change, and `renewed` after one of upstream's lease, if that counts.
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
        if mode == Mode::Auto {
            context.informers.leases.on_change(move |change| {
                if lease::is_upstreams(change.object()) {
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
        Switches {
            mode,
            config_map,
            holding: Holding::default(),
            context,
        }
    }

    /// Looks at upstream's lease, if it counts. Returns whether [`Switches::others`] may have changed by it, and when it is to be looked at again
    /// though nothing changes.
    pub(super) fn look_at_lease(&mut self, now: Timestamp) -> (bool, Option<Timestamp>) {
        if self.mode != Mode::Auto {
            return (false, None);
        }
        let lease = self.context.informers.leases.get(NAMESPACE, lease::NAME);
        self.holding.see(lease.as_deref(), now)
    }

    /// Waits until the objects are known. Returns `false` when the process stops instead.
    pub(super) async fn synced(&self) -> bool {
        let informers = &self.context.informers;
        let known = self.config_map.synced().await && informers.deployments.synced().await;
        known && (self.mode != Mode::Auto || informers.leases.synced().await)
    }

    /// Returns who gives Windows pods their addresses in place of this controller, if somebody does.
    pub(super) fn others(&self) -> Option<&'static str> {
        let informers = &self.context.informers;
        if informers
            .deployments
            .get(NAMESPACE, LEGACY_DEPLOYMENT)
            .is_some()
        {
            return Some("the Deployment kube-system/vpc-resource-controller");
        }
        match self.mode {
            Mode::Off => Some("another controller, by --ipam=off"),
            Mode::Auto if self.holding.is_held() => {
                Some("the holder of the Lease kube-system/cp-vpc-resource-controller")
            }
            Mode::Auto | Mode::On => None,
        }
    }

    /// Returns the ConfigMap, if there is one.
    pub(super) fn config_map(&self) -> Option<Arc<ConfigMap>> {
        self.config_map.get(NAMESPACE, CONFIG_MAP)
    }

    /// Reads the ConfigMap. Where others give addresses, those of this controller are off whatever it says.
    pub(super) fn read(&self) -> Read {
        let config_map = self.config_map();
        let data = config_map.as_ref().and_then(|map| map.data.as_ref());
        let none = BTreeMap::new();
        let (mut settings, unreadable) = Settings::read(data.unwrap_or(&none));
        if self.others().is_some() {
            settings.windows_ipam = false;
        }
        Read {
            settings,
            unreadable,
        }
    }
}
