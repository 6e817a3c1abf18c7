"""A training step of the image network in PyTorch, written from the same formulas, to time `bilip bench train --config cifar10` against.

Complex matrices by torch.fft and torch.linalg.solve, convolutions by cuDNN, the head as a linear layer on random features.
Usage: python3 torch_image_step.py [--batch 256] [--width 10] [--seconds 4] [--device cuda]
"""

import argparse
import json
import math
import time

import torch
from torch import nn
from torch.nn import functional as f


def cayley(free):
    """[frequencies, rows, columns] with rows >= columns."""
    n = free.shape[-1]
    g, h = free[:, :n], free[:, n:]
    eye = torch.eye(n, dtype=free.dtype, device=free.device)
    w = eye + g - g.mH + h.mH @ h
    x = torch.linalg.solve(w, eye.expand_as(w))
    return torch.cat([2 * x - eye, -2 * h @ x], dim=1)


class ConvMonLip(nn.Module):
    def __init__(self, channels, image, units, mu, nu, kernel=3):
        super().__init__()
        self.image, self.units, self.mu, self.nu = image, units, mu, nu

        def kernels(outputs, inputs):
            deviation = math.sqrt(2 / ((outputs + inputs) * kernel * kernel))
            return nn.Parameter(deviation * torch.randn(outputs, inputs, kernel, kernel))

        self.q = kernels(sum(units), channels)
        before, ab = 0, []
        for m in units:
            ab.append(kernels(m + before, m))
            before = m
        self.ab = nn.ParameterList(ab)
        self.gains = nn.Parameter(torch.stack([p.detach().norm() for p in [self.q, *ab]]))
        self.bias = nn.Parameter(torch.zeros(sum(units)))
        self.output_bias = nn.Parameter(torch.zeros(channels))
        radius = (kernel - 1) // 2
        # A shift of the kernel's middle to the origin.
        i = torch.arange(image).view(-1, 1)
        j = torch.arange(image // 2 + 1).view(1, -1)
        self.register_buffer("shift", torch.exp(2j * math.pi * radius * (i + j) / image).to(torch.complex64))

    def spectrum(self, kernels, gain):
        kernels = kernels * (gain / kernels.norm())
        z = torch.fft.rfft2(kernels, s=(self.image, self.image)) * self.shift
        return z.permute(2, 3, 0, 1).flatten(0, 1)

    def images_to(self, x):
        return torch.fft.rfft2(x).permute(2, 3, 1, 0).flatten(0, 1)

    def images_of(self, z):
        z = z.unflatten(0, (self.image, self.image // 2 + 1)).permute(3, 2, 0, 1)
        return torch.fft.irfft2(z, s=(self.image, self.image))

    def forward(self, x):
        gamma = self.nu - self.mu
        q = cayley(self.spectrum(self.q, self.gains[0]))
        s, v, at, before = [], [], 0, None
        for k, m in enumerate(self.units):
            j = cayley(self.spectrum(self.ab[k], self.gains[k + 1]))
            a, b, q_k = j[:, :m].mH, j[:, m:].mH, q[:, at : at + m]
            part = a @ q_k
            if before is not None:
                part = part - b @ before[0]
                v.append(2 * b @ before[1])
            s.append(part)
            before, at = (q_k, j[:, :m]), at + m
        s = torch.cat(s, dim=1)
        driven = math.sqrt(2 * gamma) * (s @ self.images_to(x))
        hidden, at = [], 0
        for k, m in enumerate(self.units):
            inputs = driven[:, at : at + m]
            if k:
                inputs = inputs + v[k - 1] @ hidden[-1]
            z = f.relu(self.images_of(inputs) + self.bias[at : at + m].view(1, -1, 1, 1))
            hidden.append(self.images_to(z))
            at += m
        y = self.images_of(s.mH @ torch.cat(hidden, dim=1))
        return math.sqrt(gamma / 2) * y + self.mu * x + self.output_bias.view(1, -1, 1, 1)


class Householder(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(max(channels // 16, 10), channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        p = torch.eye(x.shape[1], device=x.device)
        for v in self.vectors:
            p = p - 2 * torch.outer(p @ v, v) / (v @ v)
        return f.conv2d(x, p[:, :, None, None], self.bias)


class NormalizedConv(nn.Module):
    def __init__(self, inputs, outputs, size, stride, bound):
        super().__init__()
        self.weight = nn.Parameter(math.sqrt(2 / (9 * inputs)) * torch.randn(outputs, inputs, 3, 3))
        self.register_buffer("image", torch.randn(1, inputs, size, size))
        self.stride, self.bound = stride, bound

    def forward(self, x):
        y = f.conv2d(self.image, self.weight, stride=self.stride, padding=1)
        with torch.no_grad():
            back = f.conv_transpose2d(y, self.weight, stride=self.stride, padding=1, output_padding=self.stride - 1)
            self.image = back / back.norm()
        weight = self.weight / (y.norm() / self.bound).clamp_min(1)
        return f.conv2d(x, weight, stride=self.stride, padding=1)


class Net(nn.Module):
    def __init__(self, width, c=0.65):
        super().__init__()
        mu, nu = (1 - c) ** 4, (1 + c) ** 4
        layers, channels, size = [NormalizedConv(3, 16, 32, 1, 6.0)], 16, 32
        for k in range(3):
            out, stride = 16 * width << k, 1 if k == 0 else 2
            layers.append(NormalizedConv(channels, out, size, stride, 1.0))
            channels, size = out, size // stride
            layers.append(ConvMonLip(channels, size, [channels // 8] * 8, mu, nu))
            layers.append(Householder(channels))
        self.body = nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(), nn.AvgPool2d(8), nn.Flatten())
        self.register_buffer("projection", 0.05 * torch.randn(channels, 128))
        self.register_buffer("frequencies", torch.randn(128, 1024) / 28.28)
        self.register_buffer("phases", 2 * math.pi * torch.rand(1024))
        self.head = nn.Linear(1024, 10)

    def forward(self, x):
        h = f.layer_norm(self.body(x) @ self.projection, (128,))
        return self.head(math.sqrt(2 / 1024) * torch.cos(h @ self.frequencies + self.phases))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tf32", action="store_true", help="tensor cores for products, eleven bits")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.tf32
    net = Net(args.width).to(args.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, nesterov=True)
    x = torch.randn(args.batch, 3, 32, 32, device=args.device)
    y = torch.arange(args.batch, device=args.device) % 10
    wait = torch.cuda.synchronize if args.device.startswith("cuda") else lambda: None

    def step():
        optimizer.zero_grad(set_to_none=True)
        f.cross_entropy(net(x), y).backward()
        optimizer.step()
        wait()

    for _ in range(3):
        step()
    times, start = [], time.perf_counter()
    while len(times) < 5 or time.perf_counter() - start < args.seconds:
        clock = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - clock))
    times.sort()
    parameters = sum(p.numel() for p in net.parameters())
    print(json.dumps({"config": "cifar10", "torch": torch.__version__, "tf32": args.tf32, "batch": args.batch,
                      "parameters": parameters, "median_ms": round(times[len(times) // 2], 3), "runs": len(times)}))


if __name__ == "__main__":
    main()
