//! What the ConfigMap `kube-system/amazon-vpc-cni` says, and whether the legacy controller runs.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, runtime::watcher};
use mullion_engine::ip::{Settings, Unreadable};

use crate::{Change, Context, Informer};

const NAMESPACE: &str = "kube-system";
const CONFIG_MAP: &str = "amazon-vpc-cni";
/// A Deployment of this name gives Windows pods their addresses itself (VRC: `IsWindowsIPAMEnabled`).
const LEGACY_DEPLOYMENT: &str = "vpc-resource-controller";

/// The two objects that switch the controller on and off.
pub(super) struct Switches {
    config_map: Informer<ConfigMap>,
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
    /// Starts the watches; `changed` is called after every change.
    pub(super) fn watch(
        context: &Context,
        changed: impl Fn() + Clone + Send + Sync + 'static,
    ) -> Self {
        let api = Api::<ConfigMap>::namespaced(context.client.clone(), NAMESPACE);
        let config = watcher::Config::default().fields(&format!("metadata.name={CONFIG_MAP}"));
        let (tasks, shutdown) = (context.tasks.clone(), context.shutdown.clone());
        let config_map = Informer::with_config(api, config, |_| {}, &[], tasks, shutdown);
        config_map.on_change({
            let changed = changed.clone();
            move |_: &Change<'_, ConfigMap>| changed()
        });
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
            config_map,
            context,
        }
    }

    /// Waits until both objects are known. Returns `false` when the process stops instead.
    pub(super) async fn synced(&self) -> bool {
        self.config_map.synced().await && self.context.informers.deployments.synced().await
    }

    /// Returns the ConfigMap, if there is one.
    pub(super) fn config_map(&self) -> Option<Arc<ConfigMap>> {
        self.config_map.get(NAMESPACE, CONFIG_MAP)
    }

    /// Reads the ConfigMap. With the legacy Deployment, Windows addresses are off whatever it says.
    pub(super) fn read(&self) -> Read {
        let config_map = self.config_map();
        let data = config_map.as_ref().and_then(|map| map.data.as_ref());
        let none = BTreeMap::new();
        let (mut settings, unreadable) = Settings::read(data.unwrap_or(&none));
        let deployments = &self.context.informers.deployments;
        if deployments.get(NAMESPACE, LEGACY_DEPLOYMENT).is_some() {
            settings.windows_ipam = false;
        }
        Read {
            settings,
            unreadable,
        }
    }
}
