//! Windows: one block of PowerShell, with the user's own lines before the call of EKS's bootstrap script.
//!
//! EKS's script sets up its log, the volumes and containerd itself; it needs only the cluster and the kubelet's arguments.

use super::Input;

pub(super) fn write(input: &Input<'_>) -> String {
    let cluster = input.cluster;
    let mut text = String::from("<powershell>\n");
    if !input.user_data.is_empty() {
        text.push_str(input.user_data);
        text.push('\n');
    }
    text.push_str(
        "[string]$EKSBootstrapScriptFile = \"$env:ProgramFiles\\Amazon\\EKS\\Start-EKSBootstrap.ps1\"\n",
    );
    text.push_str(&format!(
        "& $EKSBootstrapScriptFile -EKSClusterName '{}' -APIServerEndpoint '{}'",
        cluster.name, cluster.endpoint
    ));
    if let Some(bundle) = &cluster.ca_bundle {
        text.push_str(&format!(" -Base64ClusterCA '{bundle}'"));
    }
    let args = input.kubelet_args().join(" ");
    text.push_str(&format!(" -KubeletExtraArgs '{args}'"));
    if let Some(dns) = input.kubelet.cluster_dns.first() {
        text.push_str(&format!(" -DNSClusterIP '{dns}'"));
    }
    text.push_str("\n</powershell>");
    text
}
