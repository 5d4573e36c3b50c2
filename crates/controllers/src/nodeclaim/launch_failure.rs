//! The reasons of failed launches, in Karpenter's words.

use mullion_cloud::{CloudError, Shortage};

/// Returns reason and message of the condition for a failed launch.
pub(super) fn classified(error: &CloudError) -> (&'static str, String) {
    let (reason, message) = reason_and_message(error);
    let message = match error {
        // The fleet was created, and none of its options could be launched.
        CloudError::Unfulfilled { .. } => message.to_owned(),
        _ => format!("Error creating fleet request: {message}"),
    };
    (reason, message)
}

/// Returns a reason and a message for an error of a launch (AWS provider: `errors.ToReasonMessage`).
pub(crate) fn reason_and_message(error: &CloudError) -> (&'static str, &'static str) {
    match error {
        CloudError::Throttled => ("RequestLimitExceeded", "Request limit exceeded"),
        CloudError::Unauthorized(message) => unauthorized(message),
        CloudError::Refused { code, message } | CloudError::Unfulfilled { code, message } => {
            refused(code, message)
        }
        _ => ("LaunchFailed", "Instance launch failed"),
    }
}

fn unauthorized(message: &str) -> (&'static str, &'static str) {
    let of_policy = [
        (
            "with an explicit deny in a permissions boundary",
            "User is not authorized to perform this operation due to a permission boundary",
        ),
        (
            "with an explicit deny in a service control policy",
            "User is not authorized to perform this operation due to a service control policy",
        ),
    ];
    // EC2 has one code for all of these; only its message tells which kind of policy denies the launch.
    if let Some((_, text)) = of_policy.iter().find(|(part, _)| message.contains(part)) {
        return ("Unauthorized", text);
    }
    if message.contains("Not authorized for images") {
        (
            "AMIAuthorizationFailure",
            "User is not authorized for AMI used in instance launch",
        )
    } else {
        (
            "Unauthorized",
            "User is not authorized to perform this operation because no identity-based policy allows it",
        )
    }
}

/// Error codes or message parts of EC2's launch errors, with the reason and message of the condition.
const REFUSALS: [(&str, &str, &str); 9] = [
    (
        "belong to different networks",
        "SecurityGroupSubnetVPCMismatch",
        "Security groups and subnets must be in the same VPC.",
    ),
    (
        "iamInstanceProfile.name is invalid",
        "InstanceProfileNameInvalid",
        "Instance profile name used from EC2NodeClass status does not exist",
    ),
    (
        "InvalidLaunchTemplateId.NotFound",
        "LaunchTemplateNotFound",
        "Launch template used for instance launch wasn't found",
    ),
    (
        "User data is limited to",
        "UserDataSizeLimitExceeded",
        "Rendered user data exceeds the EC2 user data size limit",
    ),
    (
        "InvalidAMIID.Malformed",
        "InvalidAMIID",
        "AMI used for instance launch is invalid",
    ),
    (
        "InvalidAMIID.NotFound",
        "AMINotFound",
        "AMI used for instance launch either does not exist or you don't have permissions to use it",
    ),
    (
        "InternalError",
        "InternalError",
        "An internal error has occurred",
    ),
    (
        "not eligible for Free Tier",
        "FreeTierIneligible",
        "The specified instance type is not eligible for Free Tier",
    ),
    (
        "PendingVerification",
        "AccountPendingVerification",
        "An instance launch was requested but the request for launching resources in this region is still being verified",
    ),
];

fn refused(code: &str, message: &str) -> (&'static str, &'static str) {
    // AWS names some failures by code and others only in the message, so both are searched, in upstream's
    // order.
    let contains = |part: &str| code.contains(part) || message.contains(part);
    let known = REFUSALS.iter().find(|(part, ..)| contains(part));
    match known {
        Some((_, reason, text)) => (reason, text),
        None => ("LaunchFailed", "Instance launch failed"),
    }
}

/// Returns the reason of an offering that a launch did not get (AWS provider: `ToReasonMessage`, which knows no word for missing
/// capacity).
pub(super) fn of_offering(shortage: &Shortage) -> &'static str {
    match shortage {
        Shortage::Vcpus { .. } => "VCPULimitExceeded",
        Shortage::Addresses => "InsufficientFreeAddressesInSubnet",
        Shortage::Other { code, message } => match code.as_str() {
            "MaxFleetCountExceeded" => "FleetQuotaExceeded",
            "MaxSpotInstanceCountExceeded" => "SpotQuotaExceeded",
            "RequestLimitExceeded" => "RequestLimitExceeded",
            "UnauthorizedOperation" => unauthorized(message).0,
            code => refused(code, message).0,
        },
        Shortage::Hosts { .. } | Shortage::Spot | Shortage::Reservation | Shortage::SpreadGroup => {
            "LaunchFailed"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_that_the_cloud_refuses_is_told_by_a_reason() {
        let refused = |code: &str, message: &str| CloudError::Refused {
            code: code.to_owned(),
            message: message.to_owned(),
        };
        let reasons = [
            (CloudError::Throttled, "RequestLimitExceeded"),
            (CloudError::Unauthorized("no".into()), "Unauthorized"),
            (
                CloudError::Unauthorized("Not authorized for images: [ami-1]".into()),
                "AMIAuthorizationFailure",
            ),
            (refused("InvalidAMIID.NotFound", "gone"), "AMINotFound"),
            (
                refused(
                    "InvalidParameterValue",
                    "User data is limited to 16384 bytes",
                ),
                "UserDataSizeLimitExceeded",
            ),
            (refused("Odd", "never seen"), "LaunchFailed"),
        ];
        for (error, reason) in reasons {
            assert_eq!(classified(&error).0, reason, "{error}");
        }
    }

    #[test]
    fn a_fleet_that_was_created_and_bought_nothing_is_no_failed_request() {
        let code = "InvalidBlockDeviceMapping".to_owned();
        let message = "Volume of size 30GB is smaller than snapshot 'snap-1', expect size>= 50GB";
        let message = message.to_owned();
        let unfulfilled = CloudError::Unfulfilled { code, message };
        let (reason, message) = classified(&unfulfilled);
        assert_eq!(
            (reason, &*message),
            ("LaunchFailed", "Instance launch failed")
        );
    }

    #[test]
    fn an_offering_that_is_not_got_is_counted_by_upstreams_reason() {
        let other = |code: &str| Shortage::Other {
            code: code.to_owned(),
            message: String::new(),
        };
        for (shortage, reason) in [
            (Shortage::Spot, "LaunchFailed"),
            (Shortage::Vcpus { limit: 5 }, "VCPULimitExceeded"),
            (Shortage::Addresses, "InsufficientFreeAddressesInSubnet"),
            (other("MaxSpotInstanceCountExceeded"), "SpotQuotaExceeded"),
            (other("UnauthorizedOperation"), "Unauthorized"),
            (other("InvalidAMIID.NotFound"), "AMINotFound"),
            (other("Odd"), "LaunchFailed"),
        ] {
            assert_eq!(of_offering(&shortage), reason, "{shortage:?}");
        }
    }
}
