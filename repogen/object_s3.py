"""What S3 has beyond a file system: metadata, conditional writes, and uploads that go on where they stopped."""

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

PART = 16 * 2**20
"""Bytes of one part of an upload; a file of at most one is put in one request."""
_PARTS = 9_000  # S3 takes 10,000
_UNDER_WAY = 4  # parts at a time: that many times PART is held in memory
_COPY_LIMIT = 5 * 2**30  # what one request copies at most
_COPY_PART = 2**30
_DELETES = 1_000  # keys that one request deletes
_CONFLICTS = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
_NO_CONDITIONS = ("NotImplemented", "501")
_CHECKSUMS = ("ChecksumCRC32", "ChecksumCRC32C", "ChecksumCRC64NVME", "ChecksumSHA1", "ChecksumSHA256")


class Changed(Exception):
    """The file that is uploaded is not the one that was planned."""


def put(system: Any, path: str, content: bytes, digest: str, **conditions: str) -> str:
    """Write an object in one request, its sha256 as metadata; return its ETag."""
    bucket, key = _split(path)
    metadata = {"sha256": digest}
    answer = system.call_s3("put_object", Bucket=bucket, Key=key, Body=content, Metadata=metadata, **conditions)
    return str(answer["ETag"])


def put_if(system: Any, path: str, content: bytes, **conditions: str) -> str | None:
    """Write an object where the conditions (IfNoneMatch, IfMatch) hold; return its ETag, None where they do not.

    Raises NotImplementedError where the store does not know conditions.
    """
    try:
        return put(system, path, content, hashlib.sha256(content).hexdigest(), **conditions)
    except OSError as error:
        if code(error) in _CONFLICTS or isinstance(error, FileExistsError):
            return None
        if code(error) in _NO_CONDITIONS:
            raise NotImplementedError from None
        raise


def delete_if(system: Any, path: str, etag: str) -> None:
    """Delete an object unless somebody wrote another one meanwhile."""
    bucket, key = _split(path)
    try:
        system.call_s3("delete_object", Bucket=bucket, Key=key, IfMatch=etag)
    except OSError as error:
        if code(error) in _NO_CONDITIONS:
            system.call_s3("delete_object", Bucket=bucket, Key=key)
        elif code(error) not in (*_CONFLICTS, "NoSuchKey", "404"):
            raise


def digest_of(system: Any, path: str) -> str | None:
    """Return the sha256 that repogen wrote with an object: whoever overwrites the object loses it."""
    return (head(system, path).get("Metadata") or {}).get("sha256")


def head(system: Any, path: str) -> Mapping[str, Any]:
    bucket, key = _split(path)
    answer: Mapping[str, Any] = system.call_s3("head_object", Bucket=bucket, Key=key)
    return answer


def age(answer: Mapping[str, Any]) -> float:
    """Return the seconds since an object was written, by the store's own clock."""
    now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    return float((now - answer["LastModified"]).total_seconds())


def upload(system: Any, path: str, source: Path, digest: str, *, resume: bool) -> None:
    """Write a file of any size; with `resume`, the parts that an earlier upload of it brought are not sent again.

    Raises Changed where the file's content is not `digest`: nothing appears then.
    """
    bucket, key = _split(path)
    size = source.stat().st_size
    length = max(PART, -(-size // _PARTS))
    target = {"Bucket": bucket, "Key": key, "UploadId": _upload_id(system, bucket, key, digest, resume=resume)}
    there = {row["PartNumber"]: row for row in _parts(system, target)}
    found = hashlib.sha256()
    parts: list[dict[str, Any]] = []
    sending: deque[Future[dict[str, Any]]] = deque()
    with ThreadPoolExecutor(_UNDER_WAY) as pool:
        for number, block in enumerate(_blocks(source, length), 1):
            found.update(block)
            if len(sending) == _UNDER_WAY:
                parts.append(sending.popleft().result())
            sending.append(pool.submit(_send, system, target, number, block, there.get(number)))
        parts += [future.result() for future in sending]
    if found.hexdigest() != digest:
        system.call_s3("abort_multipart_upload", **target)
        raise Changed
    system.call_s3("complete_multipart_upload", **target, MultipartUpload={"Parts": parts})


def abort_uploads(system: Any, prefix: str) -> int:
    """End what uploads below `prefix` were begun and never finished; return how many there were."""
    bucket, key = _split(prefix)
    begun = list(_uploads(system, bucket, f"{key}/"))
    for row in begun:
        system.call_s3("abort_multipart_upload", Bucket=bucket, Key=row["Key"], UploadId=row["UploadId"])
    return len(begun)


def copy(system: Any, source: str, target: str, size: int, digest: str) -> None:
    """Copy an object within the store, its sha256 with it."""
    bucket, key = _split(target)
    origin = dict(zip(("Bucket", "Key"), _split(source), strict=True))
    whole = {"Bucket": bucket, "Key": key, "Metadata": {"sha256": digest}}
    if size <= _COPY_LIMIT:
        system.call_s3("copy_object", **whole, CopySource=origin, MetadataDirective="REPLACE")
        return
    begun = system.call_s3("create_multipart_upload", **whole)
    upload = {"Bucket": bucket, "Key": key, "UploadId": begun["UploadId"]}
    parts = []
    for number, start in enumerate(range(0, size, _COPY_PART), 1):
        span = f"bytes={start}-{min(start + _COPY_PART, size) - 1}"
        answer = system.call_s3(
            "upload_part_copy", **upload, PartNumber=number, CopySource=origin, CopySourceRange=span
        )
        parts.append(_part(number, answer["CopyPartResult"]))
    system.call_s3("complete_multipart_upload", **upload, MultipartUpload={"Parts": parts})


def delete(system: Any, paths: Sequence[str]) -> None:
    """Delete objects, a thousand a request. Raises OSError for the first that the store keeps."""
    bucket = _split(paths[0])[0] if paths else ""
    for start in range(0, len(paths), _DELETES):
        rows = [{"Key": _split(path)[1]} for path in paths[start : start + _DELETES]]
        answer = system.call_s3("delete_objects", Bucket=bucket, Delete={"Objects": rows, "Quiet": True})
        for error in answer.get("Errors") or ():
            raise PermissionError(f"{error['Key']} cannot be deleted: {error.get('Message') or error['Code']}")


def code(error: BaseException) -> str:
    """Return S3's own code of an error, "" where there is none."""
    response = getattr(error, "response", None) or getattr(error.__cause__, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def _split(path: str) -> tuple[str, str]:
    bucket, _, key = path.partition("/")
    return bucket, key


def _upload_id(system: Any, bucket: str, key: str, digest: str, *, resume: bool) -> str:
    begun = [row for row in _uploads(system, bucket, key) if row["Key"] == key]
    if begun and resume:
        return str(max(begun, key=lambda row: row["Initiated"])["UploadId"])
    for row in begun:
        system.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=row["UploadId"])
    answer = system.call_s3("create_multipart_upload", Bucket=bucket, Key=key, Metadata={"sha256": digest})
    return str(answer["UploadId"])


def _uploads(system: Any, bucket: str, prefix: str) -> Iterator[Mapping[str, Any]]:
    marker: dict[str, str] = {}
    while True:
        answer = system.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **marker)
        yield from answer.get("Uploads") or ()
        if not answer.get("IsTruncated"):
            return
        marker = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer["NextUploadIdMarker"]}


def _parts(system: Any, target: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    marker: dict[str, int] = {}
    while True:
        answer = system.call_s3("list_parts", **target, **marker)
        yield from answer.get("Parts") or ()
        if not answer.get("IsTruncated"):
            return
        marker = {"PartNumberMarker": int(answer["NextPartNumberMarker"])}


def _blocks(source: Path, length: int) -> Iterator[bytes]:
    with source.open("rb") as file:
        while block := file.read(length):
            yield block


def _send(
    system: Any, target: Mapping[str, str], number: int, block: bytes, there: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return a part as the store has it, sent unless it has the very same."""
    if there is not None and there["Size"] == len(block) and there["ETag"].strip('"') == _md5(block):
        return _part(number, there)
    return _part(number, system.call_s3("upload_part", **target, PartNumber=number, Body=block))


def _part(number: int, answer: Mapping[str, Any]) -> dict[str, Any]:
    sums = {name: answer[name] for name in _CHECKSUMS if name in answer}
    return {"PartNumber": number, "ETag": answer["ETag"], **sums}


def _md5(block: bytes) -> str:
    return hashlib.md5(block, usedforsecurity=False).hexdigest()
