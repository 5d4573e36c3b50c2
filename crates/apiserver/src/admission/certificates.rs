//! CertificateApproval, CertificateSigning, CertificateSubjectRestriction: check who may decide about requests for certificates, and refuse
//! requests that no user may make.

use base64::{Engine, engine::general_purpose::STANDARD};
use mullion_kinds::request::{
    Ctx, MASTERS,
    attributes::{self, Attributes, Target},
};
use mullion_kube_text::{golang::quote, status::Status};
use mullion_schema::tree::Tree;
use serde_json::Value;
use x509_parser::{certification_request::X509CertificationRequest, pem::Pem, prelude::FromDer};

use super::{Action, Operation, Plugin, Request};

const GROUP: &str = "certificates.k8s.io";
const PLURAL: &str = "certificatesigningrequests";
/// The signer whose certificates the API server takes for who its clients are.
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// kube-apiserver: CertificateApproval.
pub(super) struct CertificateApproval;

/// kube-apiserver: CertificateSigning.
pub(super) struct CertificateSigning;

/// kube-apiserver: CertificateSubjectRestriction.
pub(super) struct CertificateSubjectRestriction;

/// Returns whether the user may do something for the signer, or for all signers of its domain (`<domain>/*`).
fn may(ctx: &Ctx<'_>, verb: &str, signer: &str) -> bool {
    let domain = signer.split('/').next().unwrap_or_default();
    let all = format!("{domain}/*");
    [signer, &all].into_iter().any(|name| {
        let attributes = Attributes {
            verb: verb.into(),
            target: Target::Resource(attributes::Resource {
                group: GROUP,
                resource: "signers",
                name: name.into(),
                ..attributes::Resource::default()
            }),
        };
        ctx.authorizer.allows(ctx.user, &attributes)
    })
}

fn require(ctx: &Ctx<'_>, request: &Request<'_>, verb: &str) -> Result<(), Status> {
    // From the stored object, so that a write cannot name a signer that its user may decide for.
    let signer = request.old.map_or("", |old| old["spec"].text("signerName"));
    if may(ctx, verb, signer) {
        return Ok(());
    }
    let why = format!(
        "user not permitted to {verb} requests with signerName {}",
        quote(signer)
    );
    Err(request.forbidden(&why))
}

impl Plugin for CertificateApproval {
    fn name(&self) -> &'static str {
        "CertificateApproval"
    }

    fn handles(&self, action: &Action<'_>) -> bool {
        action.operation == Operation::Update
            && action.subresource == Some("approval")
            && action.is(GROUP, PLURAL)
    }

    fn validate(&self, ctx: &Ctx<'_>, request: &Request<'_>) -> Result<(), Status> {
        require(ctx, request, "approve")
    }
}

impl Plugin for CertificateSigning {
    fn name(&self) -> &'static str {
        "CertificateSigning"
    }

    fn handles(&self, action: &Action<'_>) -> bool {
        action.operation == Operation::Update
            && action.subresource == Some("status")
            && action.is(GROUP, PLURAL)
    }

    /// Admits a write that changes neither the certificate nor the conditions; for others the user needs rights on the signer.
    fn validate(&self, ctx: &Ctx<'_>, request: &Request<'_>) -> Result<(), Status> {
        let none = Value::Null;
        let old = request.old.unwrap_or(&none);
        let same = |field: &str| request.object["status"][field] == old["status"][field];
        if same("certificate") && same("conditions") {
            return Ok(());
        }
        require(ctx, request, "sign")
    }
}

impl Plugin for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    fn handles(&self, action: &Action<'_>) -> bool {
        action.creates(GROUP, PLURAL)
    }

    fn validate(&self, _: &Ctx<'_>, request: &Request<'_>) -> Result<(), Status> {
        let spec = &request.object["spec"];
        if spec.text("signerName") != CLIENT_SIGNER {
            return Ok(());
        }
        // A request that cannot be read is refused by the kind's validation.
        let pem = STANDARD.decode(spec.text("request")).unwrap_or_default();
        if asks_for_administrators(&pem) {
            let why = format!("use of {CLIENT_SIGNER} signer with {MASTERS} group is not allowed");
            return Err(request.forbidden(&why));
        }
        Ok(())
    }
}

fn asks_for_administrators(pem: &[u8]) -> bool {
    let Some(Ok(block)) = Pem::iter_from_buffer(pem).next() else {
        return false;
    };
    X509CertificationRequest::from_der(&block.contents).is_ok_and(|(_, request)| {
        let subject = &request.certification_request_info.subject;
        let mut groups = subject.iter_organization();
        groups.any(|group| group.as_str() == Ok(MASTERS))
    })
}
