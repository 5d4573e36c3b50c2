//! Creates a pod's sandbox: the pause container and its network. Its devices are checked first
//! ([`super::devices`]).
//!
//! A pod on the host network, which every Windows HostProcess pod is, has the node's address and takes none.

use std::net::Ipv4Addr;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;

use super::{LookupPurpose, Parts, PodSim, WINDOWS_ADDRESS, devices};
use crate::kubelet::{config::FoundObjects, ids};

/// How long the network plugin of a Windows node waits for a pod's annotation.
const ANNOTATION_PATIENCE: SignedDuration = SignedDuration::from_secs(10);

/// The pause before the kubelet retries to create a sandbox.
const SANDBOX_RETRY: SignedDuration = SignedDuration::from_secs(10);

/// The state of the pause container and its network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::kubelet) enum Sandbox {
    None,
    /// The pod's claims are being looked up.
    Asking,
    /// The pod's claims have been looked up.
    Answered(Box<FoundObjects>),
    /// The network plugin waits for the annotation with the pod's address.
    Addressing {
        until: Timestamp,
    },
    Creating {
        until: Timestamp,
    },
    Failed {
        retry_at: Timestamp,
    },
    Up,
}

impl Sandbox {
    /// Returns when the sandbox needs the next step.
    pub(super) fn wake(&self) -> Option<Timestamp> {
        match self {
            Self::Creating { until } | Self::Addressing { until } => Some(*until),
            Self::Failed { retry_at } => Some(*retry_at),
            Self::None | Self::Asking | Self::Answered(_) | Self::Up => None,
        }
    }
}

impl PodSim {
    pub(super) fn host_network(&self) -> bool {
        self.spec().host_network == Some(true)
    }

    pub(super) fn advance_sandbox(&mut self, parts: &mut Parts<'_>, now: Timestamp) {
        if !self.advance_volumes(now) {
            return;
        }
        match &self.sandbox {
            Sandbox::Up | Sandbox::Asking => return,
            Sandbox::Failed { retry_at } if *retry_at > now => return,
            Sandbox::None | Sandbox::Failed { .. } if devices::any(&self.pod) => {
                let objects = devices::objects(&self.pod);
                if !objects.is_empty() {
                    self.sandbox = Sandbox::Asking;
                    return self.ask(LookupPurpose::Devices, objects);
                }
                self.begin_with_devices(&FoundObjects::new(), parts, now);
            }
            Sandbox::None | Sandbox::Failed { .. } => self.begin_sandbox(parts, now),
            Sandbox::Answered(found) => {
                let found = found.clone();
                self.begin_with_devices(&found, parts, now);
            }
            Sandbox::Addressing { until } if *until > now && self.annotated_address().is_none() => {
            }
            Sandbox::Addressing { .. } => self.make_sandbox(parts, now),
            Sandbox::Creating { .. } => {}
        }
        if let Sandbox::Creating { until } = self.sandbox
            && until <= now
        {
            self.sandbox = Sandbox::Up;
        }
    }

    fn begin_with_devices(&mut self, found: &FoundObjects, parts: &mut Parts<'_>, now: Timestamp) {
        match devices::prepare(&self.pod, found) {
            Ok(()) => self.begin_sandbox(parts, now),
            Err(why) => {
                let retry_at = now.saturating_add(devices::RESYNC);
                self.sandbox = Sandbox::Failed {
                    retry_at: retry_at.unwrap_or(Timestamp::MAX),
                };
                let message = format!(
                    "Failed to prepare dynamic resources: prepare dynamic resources: {why}"
                );
                self.event(true, "FailedPrepareDynamicResources", message, None);
            }
        }
    }

    fn begin_sandbox(&mut self, parts: &mut Parts<'_>, now: Timestamp) {
        let waits = parts.addresses.are_annotated() && !self.host_network();
        if waits && self.annotated_address().is_none() {
            let until = now.saturating_add(ANNOTATION_PATIENCE);
            self.sandbox = Sandbox::Addressing {
                until: until.unwrap_or(Timestamp::MAX),
            };
        } else {
            self.make_sandbox(parts, now);
        }
    }

    /// Returns the address that the pod's annotation names.
    fn annotated_address(&self) -> Option<Ipv4Addr> {
        let annotations = self.pod.metadata.annotations.as_ref()?;
        let (ip, _) = annotations.get(WINDOWS_ADDRESS)?.split_once('/')?;
        ip.parse().ok()
    }

    /// Processes a new annotation with the pod's address; `before` is the previous version. Returns whether the
    /// sandbox was waiting for it.
    pub(super) fn notice_address(&mut self, before: &Pod) -> bool {
        let had = before.metadata.annotations.as_ref();
        let had = had.is_some_and(|annotations| annotations.contains_key(WINDOWS_ADDRESS));
        if had || self.annotated_address().is_none() {
            return false;
        }
        match self.sandbox {
            Sandbox::Addressing { .. } => true,
            // The kubelet would retry later by itself; the annotation makes the next try succeed, so it need
            // not wait.
            Sandbox::Failed { .. } => {
                self.sandbox = Sandbox::None;
                true
            }
            _ => false,
        }
    }

    fn make_sandbox(&mut self, parts: &mut Parts<'_>, now: Timestamp) {
        match self.obtain_address(parts, now) {
            Ok(()) => {
                self.sandbox = Sandbox::Creating {
                    until: parts.pace.after(now, parts.delays.sandbox),
                };
            }
            Err(retry_at) => {
                self.sandbox = Sandbox::Failed { retry_at };
                let message = self.no_address(parts.facts.is_windows(), now);
                self.event(true, "FailedCreatePodSandBox", message, None);
            }
        }
    }

    /// Takes an address. Otherwise returns when to try again.
    fn obtain_address(&mut self, parts: &mut Parts<'_>, now: Timestamp) -> Result<(), Timestamp> {
        if self.host_network() {
            return Ok(());
        }
        let retry = now.saturating_add(SANDBOX_RETRY).unwrap_or(Timestamp::MAX);
        let address = if parts.addresses.are_annotated() {
            let address = self.annotated_address().ok_or(retry)?;
            parts.addresses.adopt(&self.uid, address);
            address
        } else {
            let given = parts.addresses.assign(&self.uid, now);
            // An address that has cooled down earlier is worth an earlier try.
            given.map_err(|exhausted| exhausted.until.map_or(retry, |until| until.min(retry)))?
        };
        self.ip = Some(address);
        Ok(())
    }

    fn no_address(&self, windows: bool, now: Timestamp) -> String {
        let sandbox = ids::hex64(&[&self.uid, "sandbox", &now.as_second().to_string()]);
        let plugin = if windows {
            "plugin type=\"vpc-bridge\" name=\"vpc\" failed (add): failed to parse Kubernetes args: \
             pod does not have label vpc.amazonaws.com/PrivateIPv4Address"
        } else {
            "plugin type=\"aws-cni\" name=\"aws-cni\" failed (add): add cmd: failed to assign an IP address to container"
        };
        format!(
            "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox \"{sandbox}\": {plugin}"
        )
    }
}
