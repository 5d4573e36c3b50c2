//! The manifests of the custom resources, as the API server installs them.
//!
//! Invariant: the YAML files are the only source of the schemas. Their fields, types, defaults, patterns, CEL rules and printer columns
//! equal Karpenter's and windows-gmsa's; a few descriptions are shorter.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

/// The texts of the manifests, by file name.
pub const MANIFESTS: &[(&str, &str)] = &[
    (
        "karpenter.sh_nodepools.yaml",
        include_str!("../crds/karpenter.sh_nodepools.yaml"),
    ),
    (
        "karpenter.sh_nodeclaims.yaml",
        include_str!("../crds/karpenter.sh_nodeclaims.yaml"),
    ),
    (
        "karpenter.sh_nodeoverlays.yaml",
        include_str!("../crds/karpenter.sh_nodeoverlays.yaml"),
    ),
    (
        "autoscaling.x-k8s.io_capacitybuffers.yaml",
        include_str!("../crds/autoscaling.x-k8s.io_capacitybuffers.yaml"),
    ),
    (
        "karpenter.k8s.aws_ec2nodeclasses.yaml",
        include_str!("../crds/karpenter.k8s.aws_ec2nodeclasses.yaml"),
    ),
    (
        "karpenter.sh_provisioners.yaml",
        include_str!("../crds/karpenter.sh_provisioners.yaml"),
    ),
    (
        "karpenter.k8s.aws_awsnodetemplates.yaml",
        include_str!("../crds/karpenter.k8s.aws_awsnodetemplates.yaml"),
    ),
    (
        "vpcresources.k8s.aws_cninodes.yaml",
        include_str!("../crds/vpcresources.k8s.aws_cninodes.yaml"),
    ),
    (
        "windows.k8s.io_gmsacredentialspecs.yaml",
        include_str!("../crds/windows.k8s.io_gmsacredentialspecs.yaml"),
    ),
    (
        "cloud.mullion.dev_simulatedaccounts.yaml",
        include_str!("../crds/cloud.mullion.dev_simulatedaccounts.yaml"),
    ),
    (
        "cloud.mullion.dev_simulatedfaults.yaml",
        include_str!("../crds/cloud.mullion.dev_simulatedfaults.yaml"),
    ),
];

/// Returns all custom resource definitions.
pub fn crds() -> Vec<CustomResourceDefinition> {
    let manifests = MANIFESTS.iter();
    manifests.map(|(file, text)| parsed(file, text)).collect()
}

/// Returns the definition of a group's resources with this plural, or `None` if there is none.
pub fn crd(group: &str, plural: &str) -> Option<CustomResourceDefinition> {
    let own = format!("{group}_{plural}.yaml");
    let mut manifests = MANIFESTS.iter();
    let (file, text) = manifests.find(|(file, _)| *file == own)?;
    Some(parsed(file, text))
}

fn parsed(file: &str, text: &str) -> CustomResourceDefinition {
    serde_saphyr::from_str(text)
        .unwrap_or_else(|error| panic!("the embedded manifest {file} parses: {error}"))
}
