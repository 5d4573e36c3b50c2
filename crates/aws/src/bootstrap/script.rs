//! Amazon Linux 2 and Ubuntu: a shell script that calls EKS's `bootstrap.sh`, as the last part of a MIME archive with the user's own parts.

use super::{
    BootstrapError, Input,
    mime::{Part, SHELL, archive},
};

pub(super) fn write(input: &Input<'_>) -> Result<String, BootstrapError> {
    let mut parts = Part::read(input.user_data, |_| SHELL)?;
    parts.push(Part::new(SHELL, script(input)));
    Ok(archive(&parts))
}

fn script(input: &Input<'_>) -> String {
    let cluster = input.cluster;
    let bundle = cluster.ca_bundle.as_ref();
    let bundle = bundle.map(|bundle| format!("--b64-cluster-ca '{bundle}'"));
    // bootstrap.sh does not accept equals signs.
    let mut lines = vec![format!(
        "/etc/eks/bootstrap.sh '{}' --apiserver-endpoint '{}' {}",
        cluster.name,
        cluster.endpoint,
        bundle.unwrap_or_default()
    )];
    if let Some(dns) = input.kubelet.cluster_dns.first() {
        if dns.contains(':') {
            lines.push("--ip-family ipv6".to_owned());
        }
        lines.push(format!("--dns-cluster-ip '{dns}'"));
    }
    // Otherwise bootstrap.sh computes the number from the instance type and overrides the kubelet's argument.
    if input.kubelet.max_pods.is_some() {
        lines.push("--use-max-pods false".to_owned());
    }
    let args = input.kubelet_args().join(" ");
    lines.push(format!("--kubelet-extra-args '{args}'"));
    if input.raid0 {
        lines.push("--local-disks raid0".to_owned());
    }
    format!(
        "#!/bin/bash -xe\nexec > >(tee /var/log/user-data.log|logger -t user-data -s 2>/dev/console) 2>&1\n{}",
        lines.join(" \\\n")
    )
}
