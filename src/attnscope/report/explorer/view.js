// From the space to the screen and back: a flat view of the plane, or the sphere seen from afar.

export class View {
  constructor() {
    this.reach = 2; // half of the width that is shown
    this.turn = { yaw: 0.5, pitch: 0.35 };
    this.width = this.height = 50;
    this.x = this.y = this.depth = 0; // of the point last looked at; depth above 0 is in front
  }

  zoom(factor) {
    this.reach = Math.min(Math.max(this.reach * factor, 1e-4), 1e9);
  }

  get scale() {
    return Math.min(this.width, this.height) / 2 / this.reach;
  }

  // Look at the point that stands in `values` from `at` on.
  see(values, at, dim) {
    this.look(values[at], values[at + 1], dim === 3 ? values[at + 2] : 0, dim);
  }

  look(p0, p1, p2, dim) {
    const { scale } = this;
    if (dim === 2) {
      this.x = this.width / 2 + scale * p0;
      this.y = this.height / 2 - scale * p1;
      this.depth = 1;
      return;
    }
    const { yaw, pitch } = this.turn;
    const across = Math.cos(yaw) * p0 - Math.sin(yaw) * p1;
    const away = Math.sin(yaw) * p0 + Math.cos(yaw) * p1;
    this.x = this.width / 2 + scale * across;
    this.y = this.height / 2 - scale * (Math.cos(pitch) * p2 - Math.sin(pitch) * away);
    this.depth = -(Math.sin(pitch) * p2 + Math.cos(pitch) * away);
  }

  // The point of the plane, or of the front of the unit sphere, at this place of the screen.
  pointAt(sx, sy, dim) {
    let across = (sx - this.width / 2) / this.scale;
    let up = (this.height / 2 - sy) / this.scale;
    if (dim === 2) return [across, up];
    const inside = Math.min(1, 0.9999 / Math.max(Math.hypot(across, up), 1e-9));
    across *= inside;
    up *= inside;
    const depth = Math.sqrt(Math.max(1 - across * across - up * up, 0));
    const { yaw, pitch } = this.turn;
    const away = -Math.sin(pitch) * up - Math.cos(pitch) * depth;
    return [
      Math.cos(yaw) * across + Math.sin(yaw) * away,
      -Math.sin(yaw) * across + Math.cos(yaw) * away,
      Math.cos(pitch) * up - Math.sin(pitch) * depth,
    ];
  }
}
