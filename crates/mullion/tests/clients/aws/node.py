"""Launches one Windows instance with user data as Karpenter writes it, at `mullion nodes --aws-port`, and prints its private DNS name."""

import sys

import boto3

ec2, ssm, version = boto3.client("ec2"), boto3.client("ssm"), sys.argv[1]
image = f"/aws/service/ami-windows-latest/Windows_Server-2022-English-Core-EKS_Optimized-{version}/image_id"
user_data = """<powershell>
[string]$EKSBootstrapScriptFile = "$env:ProgramFiles\\Amazon\\EKS\\Start-EKSBootstrap.ps1"
& $EKSBootstrapScriptFile -EKSClusterName 'mixed' -KubeletExtraArgs '--node-labels="karpenter.sh/nodepool=windows" --register-with-taints="karpenter.sh/unregistered:NoExecute"' 3>&1 4>&1 5>&1 6>&1
</powershell>"""
bought = ec2.run_instances(
    ImageId=ssm.get_parameter(Name=image)["Parameter"]["Value"], InstanceType="m5.xlarge", MinCount=1, MaxCount=1, UserData=user_data
)["Instances"]
print(bought[0]["PrivateDnsName"])
