"""The PyTorch half of tensorrt_gpu.py: makes the models and their data, and measures eager PyTorch.

Needs torch, transformers and torchvision; nothing of repogen. `make` writes into --work: NAME.onnx, NAME.pt,
NAME.calib.npz, NAME.val.npz (inputs), NAME.reference.npz (fp32 answers to those). `worker` answers JSON lines.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLASSES = 100
VOCABULARY = 30522


class PlainBert(torch.nn.Module):
    """A transformers.BertModel's own weights, run by plain matrix products: what an exporter can follow."""

    def __init__(self, bert):
        super().__init__()
        self.bert = bert
        self.heads = bert.config.num_attention_heads

    def forward(self, input_ids, attention_mask):
        embeddings = self.bert.embeddings
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = embeddings.word_embeddings(input_ids) + embeddings.position_embeddings(places)
        x = embeddings.LayerNorm(x + embeddings.token_type_embeddings.weight[0])
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * -10000.0
        for layer in self.bert.encoder.layer:
            x = self._layer(layer, x, mask)
        return x[:, 0]

    def _layer(self, layer, x, mask):
        inner = layer.attention.self
        query, key, value = (self._split(part(x)) for part in (inner.query, inner.key, inner.value))
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + mask
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        x = layer.attention.output.LayerNorm(layer.attention.output.dense(mixed) + x)
        hidden = torch.nn.functional.gelu(layer.intermediate.dense(x))
        return layer.output.LayerNorm(layer.output.dense(hidden) + x)

    def _split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Bert(torch.nn.Module):
    """The reference: transformers' own forward with SDPA, and the first row of what it answers."""

    def __init__(self, bert):
        super().__init__()
        self.bert = bert

    def forward(self, input_ids, attention_mask):
        return self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state[:, 0]


def make_bert(*, small):
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128}
    config = BertConfig(attn_implementation="sdpa", **(sizes if small else {}))
    return Bert(BertModel(config, add_pooling_layer=False)).eval().to(DEVICE)


def make_resnet(*, small):
    from torchvision.models import resnet
    from torchvision.models.resnet import Bottleneck, ResNet

    torch.manual_seed(0)
    model = ResNet(Bottleneck, [1, 1, 1, 1], CLASSES) if small else resnet.resnet50(weights=None, num_classes=CLASSES)
    return model.eval().to(DEVICE)


class Textures:
    """Images of made-up classes: each a mixture of gratings of its own, in any phase, under noise."""

    def __init__(self, size, seed):
        chosen = torch.Generator().manual_seed(1234)
        self.waves = (torch.rand(CLASSES, 3, 4, 2, generator=chosen) * 0.8 + 0.02).to(DEVICE)
        self.colours = torch.randn(CLASSES, 3, 4, generator=chosen).to(DEVICE)
        self.drawn = torch.Generator(DEVICE).manual_seed(seed)
        self.grid = torch.meshgrid(*[torch.arange(size, device=DEVICE)] * 2, indexing="ij")

    def draw(self, labels):
        y, x = self.grid
        wave = self.waves[labels]
        phase = torch.rand(len(labels), 3, 4, 1, 1, generator=self.drawn, device=DEVICE) * 2 * math.pi
        angle = wave[..., 0, None, None] * x + wave[..., 1, None, None] * y + phase
        pattern = (torch.sin(angle) * self.colours[labels][..., None, None]).sum(2) * 0.6
        return pattern + torch.randn(pattern.shape, generator=self.drawn, device=DEVICE) * 0.25

    def balanced(self, count):
        """Return `count` images of each class, in no order, and their labels."""
        labels = torch.arange(CLASSES, device=DEVICE).repeat_interleave(count)
        labels = labels[torch.randperm(len(labels), generator=self.drawn, device=DEVICE)]
        return torch.cat([self.draw(part) for part in labels.split(64)]).cpu(), labels.cpu()


def train(model, size, seconds, batch):
    """Teach the network the classes for some seconds: random weights would answer one class for every image."""
    images = Textures(size, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
    model.train().to(memory_format=torch.channels_last)
    begin = time.monotonic()
    while (gone := (time.monotonic() - begin) / seconds) < 1:
        for group in optimiser.param_groups:  # up in the first tenth, then down to nothing
            group["lr"] = 0.1 * min(gone / 0.1, (1 - gone) / 0.9) + 1e-4
        labels = torch.randint(0, CLASSES, (batch,), generator=images.drawn, device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(
                model(images.draw(labels).to(memory_format=torch.channels_last)), labels
            )
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
    model.eval().to(memory_format=torch.contiguous_format)
    return float(loss.detach())


def make(work, models, *, small):
    exact()
    torch.manual_seed(1)
    print(json.dumps({key: value for name in models for key, value in MAKERS[name](work, small=small).items()}))


def make_bert_files(work, *, small):
    length = 16 if small else 128
    bert = make_bert(small=small)
    tokens = torch.randint(0, VOCABULARY, (64 if small else 256, length))
    masks = torch.ones_like(tokens)
    masks[1::2, length // 2 :] = 0
    names = ("input_ids", "attention_mask")
    plain = PlainBert(bert.bert).eval()
    with torch.no_grad():
        away = (
            plain(tokens[:4].to(DEVICE), masks[:4].to(DEVICE)) - bert(tokens[:4].to(DEVICE), masks[:4].to(DEVICE))
        ).abs()
    assert away.max() < 1e-3, f"the exported BERT differs from transformers' by {away.max()}"
    write(work, "bert", bert, plain, names, ("cls",), [tokens, masks], [tokens[:64], masks[:64]])

    return {"bert_tokens": length}


def make_resnet_files(work, *, small):
    size = 64 if small else 224
    resnet = make_resnet(small=small)
    torch.backends.cudnn.benchmark = True
    loss = train(resnet, size, 15 if small else 55, 64 if small else 192)
    held, truth = Textures(size, 2).balanced(2 if small else 10)
    seen, _ = Textures(size, 3).balanced(1 if small else 3)
    write(work, "resnet", resnet, resnet, ("images",), ("logits",), [held], [seen])
    said = np.load(work / "resnet.reference.npz")["logits"].argmax(1)
    right = float((said == truth.numpy()).mean())
    return {"resnet_loss": loss, "resnet_accuracy": right, "resnet_classes": len(set(said.tolist()))}


MAKERS = {"bert": make_bert_files, "resnet": make_resnet_files}


def write(work, name, model, exported, inputs, outputs, validation, calibration):
    torch.save(model.state_dict(), work / f"{name}.pt")
    np.savez(work / f"{name}.val.npz", **{key: as_served(value) for key, value in zip(inputs, validation)})
    np.savez(work / f"{name}.calib.npz", **{key: value.numpy() for key, value in zip(inputs, calibration)})
    np.savez(work / f"{name}.reference.npz", **{outputs[0]: answers(model, validation)})
    arguments = tuple(value[:2].to(DEVICE) for value in validation)
    axes = {key: {0: "batch"} for key in (*inputs, *outputs)}
    torch.onnx.export(
        exported, arguments, work / f"{name}.onnx", input_names=list(inputs), output_names=list(outputs),
        dynamic_axes=axes, opset_version=17, dynamo=False,
    )  # fmt: skip


def as_served(value):
    """Return the values as a plan of TensorRT 8 takes them: it has no INT64."""
    return value.numpy().astype(np.int32) if value.dtype == torch.int64 else value.numpy()


def answers(model, inputs):
    with torch.no_grad():
        parts = zip(*(value.split(32) for value in inputs))
        return torch.cat([model(*(part.to(DEVICE) for part in row)).float().cpu() for row in parts]).numpy()


def exact():
    """No TF32 anywhere."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


class Worker:
    """One model in one precision, eager."""

    def __init__(self, work, name, half, *, small):
        exact()
        torch.backends.cudnn.benchmark = True
        self.model = make_bert(small=small) if name == "bert" else make_resnet(small=small)
        self.model.load_state_dict(torch.load(work / f"{name}.pt", map_location=DEVICE))
        self.kind = torch.float16 if half else torch.float32
        self.model = self.model.to(self.kind)
        data = np.load(work / f"{name}.val.npz")
        self.inputs = [torch.from_numpy(data[key]) for key in data.files]
        self.inputs = [value.long() if value.dtype == torch.int32 else value for value in self.inputs]

    def feeds(self, batch):
        return [
            value[:batch].to(DEVICE, self.kind if value.is_floating_point() else value.dtype) for value in self.inputs
        ]

    @torch.inference_mode()
    def warm(self, batch, runs):
        feeds = self.feeds(batch)
        for _ in range(runs):
            self.model(*feeds)
        wait()
        return {}

    @torch.inference_mode()
    def latency(self, batch, runs):
        feeds, found = self.feeds(batch), []
        for _ in range(runs):
            wait()
            begin = time.perf_counter()
            self.model(*feeds)
            wait()
            found.append((time.perf_counter() - begin) * 1000)
        return {"samples_ms": found}

    @torch.inference_mode()
    def throughput(self, batch, runs):
        feeds = self.feeds(batch)
        wait()
        begin = time.perf_counter()
        for _ in range(runs):
            self.model(*feeds)
        wait()
        return {"per_second": batch * runs / (time.perf_counter() - begin)}

    @torch.inference_mode()
    def answers(self, path):
        inputs = [value.to(self.kind) if value.is_floating_point() else value for value in self.inputs]
        np.savez(path, answer=answers(self.model, inputs))
        return {}


def serve(worker):
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(getattr(worker, asked.pop("op"))(**asked)), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=("make", "worker"))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", choices=("bert", "resnet"))
    parser.add_argument("--models", default="bert,resnet")
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--small", action="store_true")
    asked = parser.parse_args()
    if asked.task == "make":
        make(asked.work, asked.models.split(","), small=asked.small)
    else:
        serve(Worker(asked.work, asked.model, asked.half, small=asked.small))


if __name__ == "__main__":
    main()
