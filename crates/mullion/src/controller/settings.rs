//! The settings of `mullion controller`, read from flags and files before anything starts.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use mullion_controllers::{
    admission::{addresses::WindowsAddresses, gmsa::Gmsa, placement::PlaceByImage},
    ipam, provisioner, scheduler,
};
use mullion_images::{Registries, SystemDial};

use super::{
    args::{ControllerArgs, Parts},
    own_cluster,
    webhooks::{Rules, WebhookAddress},
};
use crate::{
    cli::UnknownImages,
    failure::Failure,
    image_facts::ImageFacts,
    input,
    traces::settings::TraceSettings,
    up::{images, scheduler_config},
};

/// The namespace that is used if the process runs outside the cluster.
const NAMESPACE: &str = "kube-system";
/// The scheduler's name if no configuration file sets another one; pods select it with `spec.schedulerName`.
const SCHEDULER_NAME: &str = "mullion";
/// The default name of the webhooks' Service.
const SERVICE: &str = "mullion";

/// The settings from flags and files, all checked before anything starts.
pub(super) struct Settings {
    pub(super) parts: Parts,
    pub(super) scheduler: scheduler::config::Config,
    pub(super) placement: mullion_engine::Options,
    pub(super) rules: Rules,
    /// The namespace of the Lease, the Secret and the Service.
    pub(super) namespace: String,
    pub(super) lease: Option<String>,
    pub(super) bind: IpAddr,
    pub(super) address: WebhookAddress,
    /// The settings of the parts that need a cloud.
    pub(super) nodes: NodeSettings,
    /// Where traces go; `None` if there are none.
    pub(super) traces: Option<TraceSettings>,
}

/// Settings of the parts that need a cloud.
pub(super) struct NodeSettings {
    pub(super) cluster: String,
    pub(super) gates: provisioner::FeatureGates,
    pub(super) settings: provisioner::Settings,
    pub(super) ipam: ipam::Mode,
}

/// Reads the settings from flags and files.
///
/// # Errors
/// A setting is wrong; nothing has been started then.
pub(super) fn read(args: &ControllerArgs, in_cluster: bool) -> Result<Settings, Failure> {
    let parts = args.parts()?;
    let scheduler = match &args.scheduler_config {
        Some(path) => {
            let (config, text) = scheduler_config::read(path)?;
            let value: Option<serde_json::Value> = input::fields(&text).ok();
            if value.is_some_and(|value| value.get("leaderElection").is_some()) {
                tracing::warn!(
                    "{}: leaderElection is not read: --leader-election-name and --disable-leader-election say it",
                    input::named(path)
                );
            }
            config
        }
        None => {
            let mut config = scheduler::config::Config::default();
            config.profiles[0].scheduler_name = SCHEDULER_NAME.to_owned();
            config
        }
    };
    let registries = Registries::new(args.registries.clone(), Arc::new(SystemDial::default()));
    let facts = Arc::new(ImageFacts::new(registries));
    let namespace = args
        .namespace
        .clone()
        .or_else(|| in_cluster.then(own_cluster::namespace).flatten())
        .unwrap_or_else(|| NAMESPACE.to_owned());
    let address = match (&args.webhook_url, &args.webhook_service, in_cluster) {
        (Some(url), _, _) => WebhookAddress::Url {
            url: checked(url)?,
            is_own: false,
        },
        (None, None, false) => WebhookAddress::Url {
            url: format!("https://127.0.0.1:{}", args.webhook_port),
            is_own: true,
        },
        (None, service, _) => WebhookAddress::Service {
            namespace: namespace.clone(),
            name: service.clone().unwrap_or_else(|| SERVICE.to_owned()),
        },
    };
    // In a cluster, API servers reach the pod over the network; elsewhere the default URL of the webhooks is on this machine.
    let bind = args.bind_address.unwrap_or(if in_cluster {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    } else {
        IpAddr::V4(Ipv4Addr::LOCALHOST)
    });
    if parts.have_webhooks() && args.webhook_port == 0 {
        return Err(
            Failure::input("--webhook-port 0: API servers have to know the port").hint(
                "give a port, or leave out placement, addresses and gmsa with --only scheduler",
            ),
        );
    }
    let lease = args
        .leader_election_name
        .clone()
        .unwrap_or_else(|| parts.lease());
    Ok(Settings {
        scheduler,
        placement: mullion_engine::Options {
            os_filter: !args.ignore_pod_os,
        },
        rules: Rules {
            placement: PlaceByImage {
                table: Arc::new(images::table(args.images.as_deref())?),
                facts: facts.clone(),
                gates_unknown: args.unknown_images == UnknownImages::Gate,
            },
            facts,
            addresses: WindowsAddresses {
                controllers: args.address_users.clone(),
            },
            gmsa: Gmsa {
                random_host_name: args.gmsa_random_hostname,
            },
        },
        lease: (!args.disable_leader_election).then_some(lease),
        nodes: NodeSettings {
            cluster: args.cluster_name.clone().unwrap_or_default(),
            gates: args.feature_gates.unwrap_or_default(),
            settings: provisioner::Settings {
                zonal_shift: args.enable_zonal_shift,
                ..args.karpenter.settings()?
            },
            ipam: args.ipam.into(),
        },
        traces: args.traces.settings()?,
        namespace,
        bind,
        address,
        parts,
    })
}

/// Checks the URL that API servers will call: it must have the scheme https and a host, but no path.
fn checked(url: &str) -> Result<String, Failure> {
    let refused = |why: &str| {
        Failure::input(format!("--webhook-url {url}: {why}"))
            .hint("it has to look like https://10.0.0.5:8443")
    };
    let uri: http::Uri = url.parse().map_err(|_| refused("it is no URL"))?;
    if uri.scheme_str() != Some("https") {
        return Err(refused("API servers call webhooks with https alone"));
    }
    if uri.host().unwrap_or_default().is_empty() {
        return Err(refused("it names no host"));
    }
    if uri
        .path_and_query()
        .is_some_and(|path| path.as_str() != "/")
    {
        return Err(refused(
            "the paths of the webhooks are added to it, so it may have none",
        ));
    }
    Ok(url.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_of_the_webhooks_has_tls_a_host_and_no_path() {
        let said = |url: &str| checked(url).map_err(|failure| failure.to_string());
        assert_eq!(
            said("https://10.0.0.5:8443/"),
            Ok("https://10.0.0.5:8443".to_owned())
        );
        for (url, why) in [
            ("http://10.0.0.5", "https alone"),
            ("https://10.0.0.5/hooks", "may have none"),
            ("10.0.0.5:8443", "https alone"),
            ("https://", "no URL"),
        ] {
            let refused = said(url).expect_err("it is refused");
            assert!(refused.contains(why), "{refused}");
        }
    }
}
